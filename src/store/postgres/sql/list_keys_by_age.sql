-- list_keys_by_age: dead and unknown keys that fit the filter, the oldest first.
select k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path,
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
  from oncegate.keys as k
 where k.service = $1::text
   and k.state in ('dead', 'unknown')
   and (k.settled_at, k.id) >= (timestamptz 'epoch' + $11::bigint * interval '1 microsecond', $2::bytea)
   and k.id between $3::bytea and $4::bytea
   and ($5::text is null or k.state = $5)
   and ($6::bytea is null or k.scope between $6 and $7::bytea)
   and ($8::text is null or k.route = $8)
   and ($9::bytea is null or k.key = $9)
   and ($10::bigint is null
        or coalesce(k.settled_at, k.created_at) <= clock_timestamp() - $10 * interval '1 millisecond')
 order by k.settled_at, k.id
 limit $12::bigint
