-- settle: ends an attempt. Only the newest attempt's token fits, and what is completed stays as it is.
update keys
   set state = :state, settled_at = :now, expires_at = :now + :ttl_ms, remember_ms = :remember_ms,
       status = :status, fields = :fields, body = :body
 where id = :id
   and token = :token
   and state not in ('completed', 'expired')
   and state <> :state -- the same settlement again changes nothing
returning expires_at
