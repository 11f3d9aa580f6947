-- forget_event_routes: forgets which routes of a service tell anybody about their keys.
delete from event_routes where service = :service
