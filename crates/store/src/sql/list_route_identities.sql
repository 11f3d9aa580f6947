-- list_route_identities: the identities of a service's routes, as they were stored last.
select r.route, r.finds
  from oncegate.route_identities as r
 where r.service = :service
 order by r.route
