-- list_route_identities: how a service's routes last found their keys.
select route, finds from route_identities where service = :service order by route
