-- store_event_route: stores that a route tells a place about its keys, unless it is stored.
insert into event_routes (service, route, sink, outcomes, body) values (:service, :route, :sink, :outcomes, :body)
    on conflict (service, route, sink) do nothing
