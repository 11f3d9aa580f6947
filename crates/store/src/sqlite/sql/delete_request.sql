-- delete_request: deletes the request of a key that needs it no more, or that is gone.
delete from outbox
 where id = :id
   and not exists (select 1 from keys as k
                    where k.id = :id and k.state not in ('completed', 'expired', 'retryable'))
