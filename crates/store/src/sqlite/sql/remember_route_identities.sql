-- remember_route_identities: stores how a route finds its keys.
insert into route_identities (service, route, finds) values (:service, :route, :finds)
