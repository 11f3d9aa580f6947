-- forget: ends an attempt that the service has refused to its caller, and deletes the key. The conditions are those of
-- settle. An accepted key is left to settle, which queues it again, and so is one with earlier attempts or a recovery point:
-- the next attempt has to know of them.
delete from keys
 where id = :id
   and token = :token
   and accepted_at is null
   and attempt = 1
   and recovery_point is null
   and state in ('in_flight', 'unknown', 'dead')
