-- settled: the columns of a key whose attempt has ended. An accepted one is queued for the next delivery: no other
-- request may take it over. One that may_forget has left is remembered for a day.
state = case when k.accepted_at is not null and :state = 'retryable' then 'queued' else :state end,
settled_at = :now,
expires_at = case when k.accepted_at is null or :state <> 'retryable'
                  then :now + case when :ttl_ms = 0 and :state = 'retryable' then 86400000 else :ttl_ms end
             end,
due_at = case when k.accepted_at is null then null
              when :state = 'retryable' then :now + coalesce(:due_ms, 0)
              when :state = 'unknown' then :now + :due_ms end,
{outcome assignments}
