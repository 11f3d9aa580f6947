-- take_over: starts the next attempt of a key, if its record is still as it was seen; past its TTL a new life begins.
create function oncegate.take_over(
  _id bytea, {attempt parameters}, _time_limit_ms bigint, _seen_token bytea, _seen_state text, _past_ttl_at bigint,
  out done boolean, out attempt integer, out recovery_point text
)
declare
  moment constant bigint := oncegate.begin_write('20ms');
  -- As of the time when it was seen: nobody has judged a TTL that was written since.
  past_ttl_at constant bigint := least(moment, _past_ttl_at);
  begins_anew constant boolean := _past_ttl_at is not null;
begin
  update oncegate.keys as k
     set {attempt assignments}, state = 'in_flight',
         attempt = case when begins_anew then 1 else k.attempt + 1 end,
         created_at = case when begins_anew then moment else k.created_at end,
         reserved_at = moment, deadline = moment + _time_limit_ms,
         settled_at = null, accepted_at = null, due_at = null, {outcome resets},
         recovery_point = case when not begins_anew then k.recovery_point end,
         earlier = case when not begins_anew
                        then oncegate.with_attempt(k.earlier, k.attempt, k.instance, k.reserved_at, k.settled_at,
                                                   k.accepted_at, k.state, k.cause) end
   where k.id = _id
     and k.token = _seen_token
     and k.state = _seen_state
     -- Nobody takes over a key that is running or queued, awaits an operator, or has a response within its TTL.
     and k.state not in ('dead', 'in_flight', 'queued')
     and (k.state not in ('completed', 'expired') or begins_anew)
     and (not begins_anew or k.expires_at + coalesce(k.remember_ms, 0) <= past_ttl_at)
  returning k.attempt, k.recovery_point into attempt, recovery_point;
  done := found;
end
