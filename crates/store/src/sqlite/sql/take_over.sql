-- take_over: the next attempt of a key, if its record is still as it was seen; past its TTL a new life begins.
update keys
   set {attempt assignments}, state = 'in_flight',
       attempt = iif(:past_ttl_at is null, attempt + 1, 1),
       created_at = iif(:past_ttl_at is null, created_at, :now),
       reserved_at = :now,
       deadline = :now + :time_limit_ms,
       settled_at = null, accepted_at = null, due_at = null, {outcome resets},
       recovery_point = iif(:past_ttl_at is null, recovery_point, null),
       earlier = iif(:past_ttl_at is null, {with attempt}, null)
 where id = :id
   and token = :seen_token
   and state = :seen_state
   -- Nobody takes over a key that is running or queued, awaits an operator, or has a response within its TTL.
   and state not in ('dead', 'in_flight', 'queued')
   and (state not in ('completed', 'expired') or :past_ttl_at is not null)
   -- As of the time when it was seen: nobody has judged a TTL that was written since.
   and (:past_ttl_at is null or expires_at + coalesce(remember_ms, 0) <= min(:now, :past_ttl_at))
returning attempt, recovery_point
