-- find_route_identity: how a route last found its keys.
select finds from rules where service = :service and route = :route
