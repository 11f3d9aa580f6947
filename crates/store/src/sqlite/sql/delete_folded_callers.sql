-- delete_folded_callers: deletes the callers that fold_callers has added to the others.
delete from weekly_counts
 where (week, service, route, caller) in (
         select week, service, route, caller
           from (select week, service, route, caller,
                        row_number() over (partition by week, service, route order by sum(count) desc, caller) as place
                   from weekly_counts
                  where week in ({this_week}, {this_week} - 604800000)
                    and service = :service
                    and route = :route
                    and length(caller) = 16
                  group by week, service, route, caller)
          where place > :limit)
