-- renew_lease: takes or renews an instance's lease, stores which purges it has seen, and returns the time, the purge
-- count, and the time until which the ends of TTLs are held.
, held as (
  -- Another counter beside `purges`: only instances that have seen the clock jump write it.
  insert into oncegate.counters as c (name, value)
  select 'ttls_held_until', $5::bigint
    from durable
   where $5 is not null and durable.setting is not null
      on conflict (name) do update set value = greatest(c.value, excluded.value)
  returning c.value
)
insert into oncegate.instances as i (id, started_at, renewed_at, lease_until, service, purges_seen)
select $1::bigint, durable.now, durable.now, durable.now + $2::bigint * interval '1 millisecond', $3::text,
       -- An instance that has just started has cached nothing.
       coalesce($4::bigint, (select c.value from oncegate.counters as c where c.name = 'purges'), 0)
  from durable
 where durable.setting is not null
    on conflict (id) do update
       set renewed_at = excluded.renewed_at, lease_until = excluded.lease_until,
           service = excluded.service,
           -- A first renewal that runs after later ones says nothing about what was cached since.
           purges_seen = coalesce($4::bigint, i.purges_seen)
returning (date_part('epoch', i.renewed_at) * 1000)::bigint as now_ms,
          coalesce((select c.value from oncegate.counters as c where c.name = 'purges'), 0) as purges,
          -- A statement does not see its own writes in a table.
          coalesce((select held.value from held),
                   (select c.value from oncegate.counters as c where c.name = 'ttls_held_until'), 0) as ttls_held_until_ms
