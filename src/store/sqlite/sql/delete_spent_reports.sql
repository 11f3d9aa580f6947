-- delete_spent_reports: deletes reports whose attempt ended otherwise, was followed by the next one, or was released.
delete from denials
 where not exists (select 1
                     from keys as k
                    where k.id = denials.id and k.token = denials.token
                      and (k.state = 'in_flight'
                           or (k.state in ('dead', 'unknown')
                               and (k.cause is null or k.cause in ('broken', 'crashed', 'store', 'timeout')))))
