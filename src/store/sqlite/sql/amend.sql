-- amend: what somebody decided about a key, where it is still as it was seen.
update keys
   set state = :state,
       -- A response that is taken back was told in time: its attempt ended with it, and cannot end a second time.
       token = iif(:seen_state = 'completed', randomblob(16), token),
       settled_at = iif(:state = 'unknown', settled_at, :now),
       expires_at = :now + :ttl_ms,
       remember_ms = :remember_ms, status = :status, fields = :fields, body = :body,
       -- What is to be asked about again is asked about from the beginning.
       probes = iif(:state <> 'unknown', probes, null),
       absences = iif(:state <> 'unknown', absences, null),
       probe_at = null
 where id = :id
   and service = :service
   and token = :token
   and state = :seen_state
   and (:quiet_after_ms is null or deadline + :quiet_after_ms <= :now)
