-- unknown_deliveries: keys of a route, accepted or with a kept request, whose last attempt has an unknown outcome and
-- that are due and quiet, see start_delivery.
select k.id, k.token, k.state, coalesce(k.due_at, k.settled_at) as since
  from oncegate.keys as k
 where k.service = :service
   and k.state = 'unknown'
   and k.route = :route
   and (k.accepted_at is not null or k.due_at is not null)
   and coalesce(k.due_at, k.settled_at) <= least(:now, :as_of)
   -- The column stands alone, so that the index is searched for it. Without a time of quiet the route accepts any.
   and k.deadline <= coalesce(least(:now, :as_of) - :quiet_after_ms, 9223372036854775807)
 order by coalesce(k.due_at, k.settled_at)
 limit :limit
