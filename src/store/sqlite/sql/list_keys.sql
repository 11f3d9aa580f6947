-- list_keys: the keys that fit the filter among the next rows in the order of ids.
with scanned_rows as materialized (
  -- Rows of all services: a limit on rows that fit would not limit the rows that are read.
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.created_at, k.settled_at
    from keys as k
   where k.id >= :from and k.id between :low and :high
   order by k.id
   limit :scan_limit
),
fitting as materialized (
  select s.id
    from scanned_rows as s
   where s.service = :service
     and (:state is null or s.state = :state)
     and (:scope_low is null or s.scope between :scope_low and :scope_high)
     and (:route is null or s.route = :route)
     and (:key is null or s.key = :key)
     and (:older_than_ms is null or coalesce(s.settled_at, s.created_at) <= :now - :older_than_ms)
   order by s.id
   limit :limit
)
select scan.scanned, scan.last,
       k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path,
       k.created_at as created_ms, k.reserved_at as reserved_ms, k.deadline as deadline_ms,
       k.settled_at as settled_ms, k.expires_at as expires_ms,
       k.status, length(k.body) as body_bytes, k.probes, k.absences, k.cause, k.earlier, k.remember_ms, k.due_at is not null as is_due, k.accepted_at as accepted_ms, k.probe_at as probe_ms,
       :now as now_ms, k.settled_at as ticks
  from (select count(*) as scanned, max(s.id) as last from scanned_rows as s) as scan
  left join fitting on true
  left join keys as k on k.id = fitting.id
 order by k.id
