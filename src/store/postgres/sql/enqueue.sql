-- enqueue: accepts keys without a record, with their requests. A key that returns no row was taken; find returns who
-- has it.
, requests as materialized (
  select *
    from unnest($1::bytea[], $2::text[], $3::bytea[], $4::bytea[], $5::bytea[], $6::text[], $7::text[], $8::bytea[],
                $9::bigint[], $10::bytea[], $11::bytea[], $12::text[], $13::bytea[],
                $14::bytea[])
         as a (id, service, scope, space, key, route, recipe, fingerprint, instance, token, path, secret, sealed, holder)
),
queued as (
  insert into oncegate.keys
         (id, service, scope, space, key, path, route, recipe, fingerprint, instance, token, holder,
          state, attempt, created_at, reserved_at, deadline, settled_at, accepted_at, due_at)
  select a.id, a.service, a.scope, a.space, a.key, a.path, a.route, a.recipe, a.fingerprint, a.instance, a.token, a.holder,
         'queued', 0, durable.now, durable.now, durable.now, durable.now, durable.now, durable.now
    from requests as a
   cross join durable
   where durable.setting is not null
   order by a.id -- two batches with two keys in common must not deadlock
      on conflict (id) do nothing
  returning id
)
insert into oncegate.outbox as o (id, since, secret, sealed)
select a.id, durable.now, a.secret, a.sealed
  from requests as a
  join queued on queued.id = a.id
 cross join durable
    -- A request that is left over from an earlier life of the key.
    on conflict (id) do update
   set since = excluded.since, attempts_before = 0, secret = excluded.secret, sealed = excluded.sealed
returning o.id
