-- due_inquiries: unknown keys of a route that are quiet and due for an inquiry, see claim_inquiry.
select k.id, k.token
  from oncegate.keys as k
 where k.service = :service
   and k.state = 'unknown'
   and k.route = :route
   and coalesce(k.inquire_at, k.settled_at) <= least(:now, :as_of)
   and k.deadline + :quiet_after_ms <= least(:now, :as_of)
 order by coalesce(k.inquire_at, k.settled_at)
 limit :limit
