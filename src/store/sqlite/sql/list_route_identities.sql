-- list_route_identities: how a service's routes last found their keys.
select route, finds from rules where service = :service order by route
