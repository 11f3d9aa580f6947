-- settled: the columns of a key whose attempt has ended. An accepted one is queued for the next delivery: no other
-- request may take it over. A kept request stays due while its outcome is unknown, and so does one whose repetition (it
-- was due before) was not executed: the attempt before may have been. One that may_forget has left is remembered for a
-- day.
state = case when :state <> 'retryable' then :state
             when k.accepted_at is not null then 'queued'
             when k.due_at < k.reserved_at then 'unknown'
             else :state end,
settled_at = :now,
expires_at = case when :state <> 'retryable' or (k.accepted_at is null and coalesce(k.due_at >= k.reserved_at, true))
                  then :now + case when :ttl_ms = 0 and :state = 'retryable' then 86400000 else :ttl_ms end
             end,
due_at = case when :state = 'unknown' and k.accepted_at is null
                then case when k.due_at is not null then :now + coalesce(:due_ms, 0) end
              when :state = 'unknown' then :now + :due_ms
              when :state = 'retryable' and (k.accepted_at is not null or k.due_at < k.reserved_at)
                then :now + coalesce(:due_ms, 0) end,
{outcome assignments}
