-- delete_spent_reports: deletes reports whose attempt ended otherwise, was followed by the next one, or was released.
delete from deferred_reports
 where not exists (select 1
                     from keys as k
                    where k.id = deferred_reports.id and k.token = deferred_reports.token
                      and (k.state = 'in_flight'
                           or (k.state in ('dead', 'unknown')
                               and (k.cause is null or k.cause in ('broken', 'crashed', 'store', 'timeout')))))
