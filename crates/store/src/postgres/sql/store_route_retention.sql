-- store_route_retention: stores how long each route of a service keeps what, for the functions that services call.
insert into oncegate.route_retention as t (service, route, ttl_ms, remember_ms, body_max, drop_headers, encrypted)
select :service, n.route, n.ttl_ms, n.remember_ms, n.body_max, n.drop_headers, :encrypted
  from json_to_recordset(:routes::json)
       as n (route text, ttl_ms bigint, remember_ms bigint, body_max bigint, drop_headers text[])
 order by n.route -- proxies that start together must not deadlock
    on conflict (service, route) do update
       set ttl_ms = excluded.ttl_ms, remember_ms = excluded.remember_ms, body_max = excluded.body_max,
           drop_headers = excluded.drop_headers, encrypted = excluded.encrypted
     where (t.ttl_ms, t.remember_ms, t.body_max, t.drop_headers::text, t.encrypted)
           is distinct from
           (excluded.ttl_ms, excluded.remember_ms, excluded.body_max, excluded.drop_headers::text, excluded.encrypted)
