-- enqueue: who inserts the key has it accepted, with its request; whoever gets no row back asks find who was first.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
),
asked as materialized (
  select *
    from unnest($1::bytea[], $2::text[], $3::bytea[], $4::bytea[], $5::bytea[], $6::text[], $7::text[], $8::bytea[],
                $9::bigint[], $10::bytea[], $11::bytea[], $12::text[], $13::bytea[])
         as a (id, service, scope, space, key, route, recipe, fingerprint, instance, token, path, secret, sealed)
),
queued as (
  insert into oncegate.keys
         (id, service, scope, space, key, path, route, recipe, fingerprint, instance, token,
          state, attempt, created_at, reserved_at, deadline, settled_at, accepted_at, due_at)
  select a.id, a.service, a.scope, a.space, a.key, a.path, a.route, a.recipe, a.fingerprint, a.instance, a.token,
         'queued', 0, durable.now, durable.now, durable.now, durable.now, durable.now, durable.now
    from asked as a
   cross join durable
   where durable.setting is not null
   order by a.id -- two batches that meet on two keys must not wait for each other
      on conflict (id) do nothing
  returning id
)
insert into oncegate.outbox as o (id, since, secret, sealed)
select a.id, durable.now, a.secret, a.sealed
  from asked as a
  join queued on queued.id = a.id
 cross join durable
    -- Left over from a life of the key that is past.
    on conflict (id) do update
   set since = excluded.since, attempts_before = 0, secret = excluded.secret, sealed = excluded.sealed
returning o.id
