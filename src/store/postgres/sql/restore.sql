-- restore: whole rows of attempts that have ended, where the store has lost them. Whoever has a row keeps it.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
)
insert into oncegate.keys as k
       (id, service, scope, space, key, path, route, recipe, fingerprint, instance, token, attempt,
        created_at, reserved_at, deadline,
        state, settled_at, expires_at, remember_ms, status, fields, body, accepted_at)
select a.id, a.service, a.scope, a.space, a.key, a.path, a.route, a.recipe, a.fingerprint, a.instance, a.token, a.attempt,
       -- When it began is lost. Late is the safe side: what is unknown becomes quiet later than it might.
       durable.now, durable.now, durable.now + a.time_limit_ms * interval '1 millisecond',
       -- A completed record may also have been reaped, or purged by hand, and this be its settlement a second time: then
       -- it lives for one more TTL, and no longer, as nobody settles for longer than that.
       a.state, durable.now, durable.now + a.ttl_ms * interval '1 millisecond',
       a.remember_ms, a.status, a.fields, a.body, timestamptz 'epoch' + a.accepted_ms * interval '1 millisecond'
  from unnest($1::bytea[], $2::text[], $3::bytea[], $4::bytea[], $5::bytea[], $6::text[], $7::text[], $8::bytea[],
              $9::bigint[], $10::bytea[], $11::bigint[], $12::integer[], $13::text[], $14::bigint[], $15::smallint[],
              $16::bytea[], $17::bytea[], $18::bigint[], $19::bytea[], $20::bigint[])
       as a (id, service, scope, space, key, route, recipe, fingerprint, instance, token, time_limit_ms,
             attempt, state, ttl_ms, status, fields, body, remember_ms, path, accepted_ms)
 cross join durable
 where durable.setting is not null
 order by a.id -- two batches that meet on two keys must not wait for each other
    on conflict (id) do nothing
returning k.id, (date_part('epoch', k.expires_at) * 1000)::bigint as expires_at_ms
