-- settle_skip_locked: settle, but rows that another transaction has locked are skipped and tried again later.
with available as materialized (
  -- It costs a third more than settle, so it runs only after settle has met a locked row.
  select s.*
    from unnest($1::bytea[], $2::bytea[], $3::text[], $4::bigint[], $5::smallint[], $6::bytea[], $7::bytea[],
                $8::bigint[], $9::bigint[], $10::text[])
         as s (id, token, state, ttl_ms, status, fields, body, remember_ms, due_ms, cause)
    join oncegate.keys as k on k.id = s.id
   order by k.id
     for no key update of k skip locked
)
-- The condition and the new values are settle's own: the locks that this statement holds are no obstacle to it.
select settled as id, until_ms as expires_at_ms
  from oncegate.settle_3(
         (select array_agg(id order by id) from available),
         (select array_agg(token order by id) from available),
         (select array_agg(state order by id) from available),
         (select array_agg(ttl_ms order by id) from available),
         (select array_agg(status order by id) from available),
         (select array_agg(fields order by id) from available),
         (select array_agg(body order by id) from available),
         (select array_agg(remember_ms order by id) from available),
         (select array_agg(due_ms order by id) from available),
         (select array_agg(cause order by id) from available))
