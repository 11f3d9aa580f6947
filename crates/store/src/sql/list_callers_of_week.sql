-- list_callers_of_week: the counts of a service's week by route, caller and kind, the callers with most of them first.
-- Without a week, of the one that has begun.
select c.route, c.caller, c.kind, c.count
  from oncegate.weekly_counts as c
 where c.week = coalesce(
         :week,
         {this_week})
   and c.service = :service
 order by sum(c.count) over (partition by c.route, c.caller) desc, c.route, c.caller, c.kind
 limit 10000
