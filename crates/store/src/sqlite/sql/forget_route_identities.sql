-- forget_route_identities: deletes how a service's routes last found their keys.
delete from route_identities where service = :service
