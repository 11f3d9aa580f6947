-- list_weeks: the counts of a service's last 13 weeks by route and kind, the latest first.
select c.week, c.route, c.kind, cast(sum(c.count) as bigint) as count
  from oncegate.weekly_counts as c
 where c.week > :now - 7862400000
   and c.service = :service
 group by c.week, c.route, c.kind
 order by c.week desc, c.route, c.kind
 limit 10000
