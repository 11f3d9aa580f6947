-- remember_route_identities: stores how a service's routes find their keys, and forgets its other routes; returns
-- the identities as they were before.
with written as (
  insert into oncegate.route_identities as r (service, route, finds)
  select $1, g.route, g.finds
    from unnest($2, $3) as g (route, finds)
   -- Instances that start together lock in one order.
   order by g.route
      on conflict (service, route) do update set finds = excluded.finds where r.finds <> excluded.finds
),
forgotten as (
  delete from oncegate.route_identities as r where r.service = $1 and r.route <> all ($2)
)
select before.route, before.finds
  from oncegate.route_identities as before
 where before.service = $1
 order by before.route
