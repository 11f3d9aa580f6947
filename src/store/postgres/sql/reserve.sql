-- reserve: who inserts the key has it; whoever gets no row back asks find who was first.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
)
insert into oncegate.keys
       (id, service, scope, space, key, path, route, recipe, fingerprint, instance, token,
        state, attempt, created_at, reserved_at, deadline)
select a.id, a.service, a.scope, a.space, a.key, a.path, a.route, a.recipe, a.fingerprint, a.instance, a.token,
       'in_flight', 1, durable.now, durable.now, durable.now + a.time_limit_ms * interval '1 millisecond'
  from unnest($1::bytea[], $2::text[], $3::bytea[], $4::bytea[], $5::bytea[], $6::text[], $7::text[], $8::bytea[],
              $9::bigint[], $10::bytea[], $11::bigint[], $12::bytea[])
       as a (id, service, scope, space, key, route, recipe, fingerprint, instance, token, time_limit_ms, path)
 cross join durable
 where durable.setting is not null
 order by a.id -- two batches that meet on two keys must not wait for each other
    on conflict (id) do nothing
returning id, token
