-- store_event_routes: stores which routes of a service tell which sinks about their keys, in place of what was stored,
-- or beside it.
with given as (
  select n.route, n.sink, n.outcomes, n.body
    from json_to_recordset(:routes::json) as n (route text, sink text, outcomes text[], body boolean)
),
gone as (
  delete from oncegate.event_routes as t
   where not :keeps_stored
     and t.service = :service
     and not exists (select from given as g where g.route = t.route and g.sink = t.sink)
)
insert into oncegate.event_routes as t (service, route, sink, outcomes, body)
select :service, g.route, g.sink, g.outcomes, g.body
  from given as g
 order by g.route, g.sink -- proxies that start together must not deadlock
    on conflict (service, route, sink) do update set outcomes = excluded.outcomes, body = excluded.body
     where not :keeps_stored
       and (t.outcomes::text, t.body) is distinct from (excluded.outcomes::text, excluded.body)
