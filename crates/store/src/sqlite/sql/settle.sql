-- settle: ends an attempt. Only the newest attempt's token fits, and a completed key stays as it is.
update keys
   set state = iif(accepted_at is not null and :state = 'retryable', 'queued', :state), settled_at = :now,
       -- A key that forget has left is remembered for a day.
       expires_at = iif(accepted_at is not null and :state = 'retryable', null,
                        :now + iif(:ttl_ms = 0 and :state = 'retryable', 86400000, :ttl_ms)),
       due_at = case when accepted_at is null then null
                     when :state = 'retryable' then :now + coalesce(:due_ms, 0)
                     when :state = 'unknown' then :now + :due_ms end,
       {outcome assignments}
 where id = :id
   and token = :token
   -- A response counts whatever its key has become meanwhile. Any other outcome undoes nothing that was decided since,
   -- by the service, a reconciler or an operator.
   and case :state
         when 'completed' then state not in ('completed', 'expired')
         when 'retryable' then state in ('in_flight', 'unknown') or (state = 'dead' and accepted_at is null)
         else state = 'in_flight'
       end
returning expires_at
