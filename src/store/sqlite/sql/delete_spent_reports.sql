-- delete_spent_reports: deletes reports whose attempt ended otherwise, was followed by the next one, or was released.
delete from denials
 where not exists (select 1
                     from keys as k
                    where k.id = denials.id and k.token = denials.token
                      and k.state in ('dead', 'in_flight', 'unknown'))
