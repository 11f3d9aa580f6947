-- deny: a service says that its attempt, which has ended, was not executed.
update keys
   -- What was accepted is for us to try again, and for nobody else.
   set state = iif(accepted_at is null, 'retryable', 'queued'), settled_at = :now,
       expires_at = iif(accepted_at is null, :now + :ttl_ms, null), due_at = iif(accepted_at is null, null, :now)
 where id = :id and token = :token and service = :service and state in ('dead', 'unknown')
returning state
