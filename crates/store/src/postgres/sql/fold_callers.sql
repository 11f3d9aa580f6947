-- fold_callers: adds the callers of a route and week past those with the highest counts to the others.
with ranked as (
  select c.week, c.service, c.route, c.caller,
         row_number() over (partition by c.week, c.service, c.route order by sum(c.count) desc, c.caller) as place
    from oncegate.weekly_counts as c
   where c.week in ({this_week}, {this_week} - 604800000)
     and c.service = :service
     and c.route = :route
     and length(c.caller) = 16
   group by c.week, c.service, c.route, c.caller
),
folded as (
  delete from oncegate.weekly_counts as c
   using ranked as r
   where r.place > :limit
     and c.week = r.week and c.service = r.service and c.route = r.route and c.caller = r.caller
  returning c.week, c.service, c.route, c.kind, c.count
)
insert into oncegate.weekly_counts as c (week, service, route, caller, kind, count)
select f.week, f.service, f.route, 'others', f.kind, cast(sum(f.count) as bigint)
  from folded as f
 group by f.week, f.service, f.route, f.kind
 order by f.week, f.service, f.route, f.kind
    on conflict (week, service, route, caller, kind) do update set count = c.count + excluded.count
