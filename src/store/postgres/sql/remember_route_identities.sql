-- remember_route_identities: stores how a service's routes find their keys, and forgets its other routes; returns
-- the identities as they were before.
, identities as materialized (
  select g.route, g.finds from unnest($2::text[], $3::text[]) as g (route, finds)
),
written as (
  insert into oncegate.rules as r (service, route, finds)
  select $1::text, identities.route, identities.finds
    from identities
   cross join durable
   where durable.setting is not null
   -- Instances that start together lock in one order.
   order by identities.route
      on conflict (service, route) do update set finds = excluded.finds where r.finds <> excluded.finds
),
forgotten as (
  delete from oncegate.rules as r
   using durable
   where r.service = $1 and r.route <> all ($2) and durable.setting is not null
)
-- The identities as they were before this statement.
select before.route, before.finds
  from oncegate.rules as before
 where before.service = $1
 order by before.route
