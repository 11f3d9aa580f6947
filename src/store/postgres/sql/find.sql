-- find: records by id, without the response where it is larger than the limit. A statement of its own: one snapshot cannot show the row that an insert has just lost to.
with writable as materialized (
  -- A server that takes no writes shows old records. It refuses a lock even on no rows, and the connection is dropped.
  select from oncegate.instances where false for update
)
select k.id, k.attempt, k.token, k.recipe, k.fingerprint, k.state,
       (date_part('epoch', content.now - k.reserved_at) * 1000)::bigint as running_ms,
       (date_part('epoch', k.deadline - content.now) * 1000)::bigint as deadline_in_ms,
       -- Past its TTL and forgotten, or past it and remembered to refuse late retries.
       coalesce(k.expires_at + coalesce(k.remember_ms, 0) * interval '1 millisecond' <= content.now, false)
         as past_ttl,
       k.state = 'expired' or (k.remember_ms is not null and k.expires_at <= content.now) as late,
       -- Rounded up: what had ended by then has ended at it.
       ceil(date_part('epoch', content.now) * 1000)::bigint as now_ms,
       (date_part('epoch', content.now - k.settled_at) * 1000)::bigint as settled_ms,
       (date_part('epoch', k.expires_at) * 1000)::bigint as expires_at_ms,
       (date_part('epoch', k.accepted_at) * 1000)::bigint as accepted_at_ms,
       k.recovery_point, k.status,
       case when content.bytes <= $2::bigint then k.fields end as fields,
       case when content.bytes <= $2 then k.body end as body,
       case when content.bytes > $2 then content.bytes end as left_out_bytes
  from unnest($1::bytea[]) as wanted (id)
  join oncegate.keys as k on k.id = wanted.id
 cross join lateral (
         -- Known without reading the values. And one time for all columns.
         select coalesce(octet_length(k.fields), 0)::bigint + coalesce(octet_length(k.body), 0) as bytes,
                clock_timestamp() as now
       ) as content
 where not exists (select from writable)
