-- remember_route_identities: stores how a service's routes find their keys, if what is stored is still what was read,
-- or if nothing was and nothing is.
insert into oncegate.route_identities as r (service, generation, finds)
select :service, 1, :finds
 where :generation is null
    or exists (select 1 from oncegate.route_identities as o where o.service = :service and o.generation = :generation)
    on conflict (service) do update
   set generation = r.generation + case when r.finds = excluded.finds then 0 else 1 end, finds = excluded.finds
 where r.generation = :generation
returning generation
