-- store_event_route: stores that a route tells a place about its keys.
insert into event_routes (service, route, sink, types, body) values (:service, :route, :sink, :types, :body)
