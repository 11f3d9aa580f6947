-- restore: writes whole rows of ended attempts that the store has lost, or whose takeover it has lost.
, available as materialized (
  -- Rows that another transaction has locked are skipped and tried again: they must not block the others.
  select k.id
    from unnest($1::bytea[]) as wanted (id)
    join oncegate.keys as k on k.id = wanted.id
   order by k.id
     for no key update of k skip locked
)
, ended as materialized (
  select *
    from unnest($1::bytea[], $2::text[], $3::bytea[], $4::bytea[], $5::bytea[], $6::text[], $7::text[], $8::bytea[],
                $9::bigint[], $10::bytea[], $11::bigint[], $12::integer[], $13::text[], $14::bigint[], $15::smallint[],
                $16::bytea[], $17::bytea[], $18::bigint[], $19::bytea[], $20::bigint[], $21::bytea[], $22::text[],
                $23::boolean[], $24::bytea[], $25::bigint[])
         as a (id, service, scope, space, key, route, recipe, fingerprint, instance, token, time_limit_ms,
               attempt, state, ttl_ms, status, fields, body, remember_ms, path, accepted_ms, replaced_token, cause,
               replaced_was_completed, holder, due_ms)
)
insert into oncegate.keys as k
       (id, service, scope, space, key, path, route, recipe, fingerprint, instance, token, attempt,
        created_at, reserved_at, deadline,
        state, settled_at, expires_at, remember_ms, status, fields, body, accepted_at, cause, holder, due_at)
select a.id, a.service, a.scope, a.space, a.key, a.path, a.route, a.recipe, a.fingerprint, a.instance, a.token, a.attempt,
       -- The time when it began is lost. Late is the safe side: an unknown key becomes quiet later than it could.
       durable.now, durable.now, durable.now + a.time_limit_ms * interval '1 millisecond',
       -- A completed record may also have been reaped or purged, and this be its settlement a second time, after an outage.
       -- Then it lives for one more TTL.
       a.state, durable.now, durable.now + a.ttl_ms * interval '1 millisecond',
       a.remember_ms, a.status, a.fields, a.body, timestamptz 'epoch' + a.accepted_ms * interval '1 millisecond',
       a.cause, a.holder, case when a.accepted_ms is not null then durable.now + a.due_ms * interval '1 millisecond' end
  from ended as a
 cross join durable
 where durable.setting is not null
   and (   a.id in (select available.id from available)
        or not exists (select from oncegate.keys as k where k.id = a.id))
 order by a.id -- two batches with two keys in common must not deadlock
    on conflict (id) do update
   set path = excluded.path, route = excluded.route, recipe = excluded.recipe, fingerprint = excluded.fingerprint,
       instance = excluded.instance, token = excluded.token, state = excluded.state, attempt = excluded.attempt,
       reserved_at = excluded.reserved_at, deadline = excluded.deadline, settled_at = excluded.settled_at,
       expires_at = excluded.expires_at, remember_ms = excluded.remember_ms, status = excluded.status,
       fields = excluded.fields, body = excluded.body, cause = excluded.cause, probes = null, absences = null, probe_at = null,
       accepted_at = excluded.accepted_at, due_at = excluded.due_at,
       created_at = case when k.attempt < excluded.attempt then k.created_at else excluded.created_at end,
       recovery_point = case when k.attempt < excluded.attempt then k.recovery_point end,
       earlier = case when k.attempt < excluded.attempt then k.earlier end
 -- Only the row that the takeover had replaced: each attempt replaces the token, so none has begun since.
 where exists (select from ended
                where ended.id = k.id
                  and ended.replaced_token = k.token
                  -- A row that was completed only since it was lost keeps its response.
                  and (ended.replaced_was_completed or k.state not in ('completed', 'expired')))
   -- One that was given up since counts as any other that is dead: a response settles it.
   and (k.state <> 'dead' or excluded.state = 'completed')
returning k.id, (date_part('epoch', k.expires_at) * 1000)::bigint as expires_at_ms
