-- list_keys_in_flight: keys in flight that fit the filter; there are few.
select k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path,
       k.created_at as created_ms, k.reserved_at as reserved_ms, k.deadline as deadline_ms,
       k.settled_at as settled_ms, k.expires_at as expires_ms,
       k.status, length(k.body) as body_bytes, k.probes, k.absences, k.cause, k.earlier, k.remember_ms, k.due_at is not null as is_due, k.accepted_at as accepted_ms, k.probe_at as probe_ms,
       :now as now_ms, k.settled_at as ticks
  from keys as k
 where k.service = :service
   and k.state = 'in_flight'
   and k.id >= :from
   and k.id between :low and :high
   and (:state is null or k.state = :state)
   and (:scope_low is null or k.scope between :scope_low and :scope_high)
   and (:route is null or k.route = :route)
   and (:key is null or k.key = :key)
   and (:older_than_ms is null or coalesce(k.settled_at, k.created_at) <= :now - :older_than_ms)
 order by k.id
 limit :limit
