-- deny: a service says that its attempt, which has ended, was not executed.
update keys
   set state = 'retryable', settled_at = :now, expires_at = :now + :ttl_ms
 where id = :id and token = :token and service = :service and state in ('dead', 'unknown')
