-- forget: ends an attempt that the service has refused to its caller, and deletes the key. The conditions are those of
-- settle; an accepted key is left to settle, which queues it again.
delete from keys
 where id = :id
   and token = :token
   and accepted_at is null
   and state in ('in_flight', 'unknown', 'dead')
