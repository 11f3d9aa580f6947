-- forget_route_identities: deletes how a service's routes found their keys.
delete from rules where service = :service
