-- redact: takes what belongs to its caller from a key that is still as it was seen.
update keys as k
   set {redacted}
 where k.id = :id
   and k.service = :service
   and k.token = :token
   and k.state = :seen_state
   and k.state in ('completed', 'expired', 'retryable')
returning state
