-- remember_route_identities: stores how a route finds its keys.
insert into rules (service, route, finds)
values (:service, :route, :finds)
    on conflict (service, route) do update set finds = excluded.finds
