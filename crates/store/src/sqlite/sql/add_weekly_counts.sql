-- add_weekly_counts: adds counts to the week that has begun.
insert into weekly_counts as c (week, service, route, caller, kind, count)
select {this_week},
       n.value ->> 'service', n.value ->> 'route', n.value ->> 'caller', n.value ->> 'kind', n.value ->> 'count'
  from json_each(:counts) as n
 where true
    on conflict (week, service, route, caller, kind) do update set count = c.count + excluded.count
