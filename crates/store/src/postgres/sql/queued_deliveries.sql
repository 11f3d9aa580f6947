-- queued_deliveries: queued keys of a route that are due, the longest due first, see start_delivery.
select k.id, k.token, k.state, k.due_at as since
  from oncegate.keys as k
 where k.service = :service
   and k.state = 'queued'
   and k.route = :route
   and k.due_at <= least(:now, :as_of)
 order by k.due_at
 limit :limit
