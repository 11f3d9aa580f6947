-- apply_probe_finding: applies a reconciler's verdict to an unknown key.
update keys
   -- Only a deliverer tries an accepted key again.
   set state = iif(accepted_at is not null and :state = 'retryable', 'queued', :state), absences = coalesce(:absences, absences),
       settled_at = iif(:state = 'unknown', settled_at, :now),
       expires_at = iif(accepted_at is not null and :state = 'retryable', null, :now + :ttl_ms),
       due_at = case when accepted_at is null or :state in ('completed', 'dead') then null
                     when :state = 'retryable' then :now else due_at end,
       remember_ms = :remember_ms, status = :status, fields = :fields, body = :body
 where id = :id
   and token = :token
   and state = 'unknown'
   -- A response is proof whenever it comes. Any other verdict counts only as the answer to the last probe.
   and (:state = 'completed' or probes = :probe)
returning service, state
