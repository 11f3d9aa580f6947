-- list_route_identities: how the routes of each service find their keys, as it was stored last.
select r.service, r.generation, r.finds from oncegate.route_identities as r order by r.service
