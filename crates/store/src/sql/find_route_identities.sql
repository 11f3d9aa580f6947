-- find_route_identities: how a service's routes find their keys, as it was stored last.
select r.generation, r.finds from oncegate.route_identities as r where r.service = :service
