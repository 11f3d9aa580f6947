-- remember_route_identities: stores how a service's routes find their keys, and forgets its other routes.
with given as (
  select g.key as route, g.value as finds from json_each_text(:identities::json) as g
),
written as (
  insert into oncegate.route_identities as r (service, route, finds)
  select :service, g.route, g.finds
    from given as g
   -- Instances that start together lock in one order.
   order by g.route
      on conflict (service, route) do update set finds = excluded.finds where r.finds <> excluded.finds
)
delete from oncegate.route_identities as r where r.service = :service and r.route not in (select g.route from given as g)
