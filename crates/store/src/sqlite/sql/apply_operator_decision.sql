-- apply_operator_decision: applies an operator's decision to a key that is still as it was seen.
update keys
   -- Only a deliverer tries an accepted key again; a release gives it to the next request.
   set state = case when accepted_at is null or :action = 'release' then :state
                    when :state = 'retryable' or (:action = 'requeue' and due_at is not null) then 'queued'
                    else :state end,
       -- A withdrawn response had ended its attempt. A new token keeps that attempt from ending a second time.
       token = iif(:seen_state = 'completed', :new_token, token),
       hand_token = iif(:state <> 'completed', null, iif(:seen_state = 'completed', :new_token, token)),
       settled_at = iif(:state = 'unknown' and due_at is null, settled_at, :now),
       expires_at = iif(accepted_at is not null and :state = 'retryable' and :action <> 'release', null, :now + :ttl_ms),
       -- A release starts the operation from the beginning.
       recovery_point = iif(:action = 'release', null, recovery_point),
       accepted_at = iif(:action = 'release', null, accepted_at),
       attempt = iif(:action = 'release', max(attempt, 1), attempt),
       due_at = case when accepted_at is null or :action = 'release' or :state = 'completed' then null
                     when :state = 'retryable' or due_at is not null then :now end,
       {response assignments},
       -- A key that is to be asked again is asked from the first inquiry on.
       inquiries = iif(:state in ('completed', 'retryable'), inquiries, null),
       absences = iif(:state in ('completed', 'retryable'), absences, null),
       inquire_at = null
 where id = :id
   and service = :service
   and token = :token
   and state = :seen_state
   -- A service's own response is never replaced.
   and (:action <> 'replace' or hand_token = token)
   and (:quiet_after_ms is null or deadline + :quiet_after_ms <= :as_of)
returning state
