-- take_over: starts the next attempt of a key, if its record is still as it was seen; past its TTL a new life begins.
update oncegate.keys as k
   set state = 'in_flight', attempt = iif(:past_ttl_at is null, attempt + 1, 1),
       deadline = :now + :time_limit_ms, settled_at = null, accepted_at = null, due_at = null,
       {taken_over}
 where
   {may_take_over}
returning attempt, recovery_point
