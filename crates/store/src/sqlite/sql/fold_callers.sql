-- fold_callers: adds the callers of a route and week past those with the highest counts to the others.
insert into weekly_counts as c (week, service, route, caller, kind, count)
select f.week, f.service, f.route, 'others', f.kind, sum(f.count)
  from weekly_counts as f
  join (select week, service, route, caller,
               row_number() over (partition by week, service, route order by sum(count) desc, caller) as place
          from weekly_counts
         where week in ({this_week}, {this_week} - 604800000)
           and service = :service
           and route = :route
           and length(caller) = 16
         group by week, service, route, caller) as r
    on f.week = r.week and f.service = r.service and f.route = r.route and f.caller = r.caller
 where r.place > :limit
 group by f.week, f.service, f.route, f.kind
    on conflict (week, service, route, caller, kind) do update set count = c.count + excluded.count
