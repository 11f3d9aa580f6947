-- report_not_executed: a service reports that its attempt, which has ended, was not executed.
update keys
   -- Only a deliverer tries an accepted key again.
   set state = iif(accepted_at is null, 'retryable', 'queued'), settled_at = :now,
       expires_at = iif(accepted_at is null, :now + :ttl_ms, null), due_at = iif(accepted_at is null, null, :now)
 where id = :id and token = :token and service = :service and state in ('dead', 'unknown')
returning state
