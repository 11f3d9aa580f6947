-- take_over: the next attempt of a key, if its record is still as it was seen; past its TTL a new life begins.
update keys
   set path = :path, route = :route, recipe = :recipe, fingerprint = :fingerprint, instance = :instance, token = :token,
       state = 'in_flight',
       attempt = iif(:past_ttl, 1, attempt + 1),
       created_at = iif(:past_ttl, :now, created_at),
       reserved_at = :now,
       deadline = :now + :time_limit_ms,
       settled_at = null, expires_at = null, remember_ms = null, status = null, fields = null, body = null,
       probes = null, absences = null, probe_at = null, accepted_at = null, due_at = null,
       recovery_point = iif(:past_ttl, null, recovery_point)
 where id = :id
   and token = :seen_token
   and state = :seen_state
   -- Nobody takes over a key that is running or queued, awaits an operator, or has a response within its TTL.
   and state not in ('dead', 'in_flight', 'queued')
   and (state not in ('completed', 'expired') or :past_ttl)
   and (not :past_ttl or expires_at + coalesce(remember_ms, 0) <= :now)
returning attempt, recovery_point
