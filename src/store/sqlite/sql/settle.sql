-- settle: ends an attempt. Only the newest attempt's token fits, and what is completed stays as it is.
update keys
   set state = iif(accepted_at is not null and :state = 'retryable', 'queued', :state), settled_at = :now,
       expires_at = iif(accepted_at is not null and :state = 'retryable', null, :now + :ttl_ms),
       due_at = case when accepted_at is null then null
                     when :state = 'retryable' then :now + coalesce(:due_ms, 0)
                     when :state = 'unknown' then :now + :due_ms end,
       remember_ms = :remember_ms,
       status = :status, fields = :fields, body = :body
 where id = :id
   and token = :token
   and state not in ('completed', 'expired')
   and state <> iif(accepted_at is not null and :state = 'retryable', 'queued', :state) -- the same settlement again changes nothing
returning expires_at
