-- forget_route_identities: deletes how a service's routes found their keys.
delete from route_identities where service = :service
