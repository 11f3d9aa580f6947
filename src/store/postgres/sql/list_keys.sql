-- list_keys: the keys that fit the filter among the next rows in the order of ids.
with scanned_rows as materialized (
  -- Rows of all services: a limit on rows that fit would not limit the rows that are read.
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.created_at, k.settled_at
    from oncegate.keys as k
   where k.id >= $2::bytea and k.id between $3::bytea and $4::bytea
   order by k.id
   limit $11::bigint
),
fitting as materialized (
  select s.id
    from scanned_rows as s
   where s.service = $1::text
     and ($5::text is null or s.state = $5)
     and ($6::bytea is null or s.scope between $6 and $7::bytea)
     and ($8::text is null or s.route = $8)
     and ($9::bytea is null or s.key = $9)
     and ($10::bigint is null
          or coalesce(s.settled_at, s.created_at) <= clock_timestamp() - $10 * interval '1 millisecond')
   order by s.id
   limit $12::bigint
)
select scan.scanned, scan.last,
       k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path,
       (date_part('epoch', k.created_at) * 1000)::bigint as created_ms,
       (date_part('epoch', k.reserved_at) * 1000)::bigint as reserved_ms,
       (date_part('epoch', k.deadline) * 1000)::bigint as deadline_ms,
       (date_part('epoch', k.settled_at) * 1000)::bigint as settled_ms,
       (date_part('epoch', k.expires_at) * 1000)::bigint as expires_ms,
       k.status, octet_length(k.body)::bigint as body_bytes, k.probes, k.absences, k.cause, k.earlier::text as earlier, k.remember_ms, k.due_at is not null as is_due,
       (date_part('epoch', k.accepted_at) * 1000)::bigint as accepted_ms,
       (date_part('epoch', k.probe_at) * 1000)::bigint as probe_ms,
       (date_part('epoch', clock_timestamp()) * 1000)::bigint as now_ms,
       round(date_part('epoch', k.settled_at) * 1000000)::bigint as ticks
  from (select count(*) as scanned, (select s.id from scanned_rows as s order by s.id desc limit 1) as last
          from scanned_rows) as scan
  left join (fitting join oncegate.keys as k on k.id = fitting.id) on true
 order by k.id
