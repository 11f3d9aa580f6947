-- forget_denials: of what has ended otherwise, what the next attempt has followed, and what is released.
delete from denials
 where not exists (select 1
                     from keys as k
                    where k.id = denials.id and k.token = denials.token
                      and k.state in ('dead', 'in_flight', 'unknown'))
