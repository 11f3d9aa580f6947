-- take_over: starts the next attempt of a key, if its record is still as it was seen; past its TTL a new life begins.
create function oncegate.take_over(
  _id bytea, {attempt parameters}, _time_limit_ms bigint, _seen_token bytea, _seen_state text, _past_ttl_at bigint, _redelivered boolean,
  out done boolean, out attempt integer, out recovery_point text
)
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  update oncegate.keys as k
     set state = 'in_flight', attempt = case when _past_ttl_at is null then k.attempt + 1 else 1 end,
         deadline = moment + _time_limit_ms, settled_at = null, accepted_at = null, due_at = null,
         {taken_over}
   where
     {may_take_over}
  returning k.attempt, k.recovery_point into attempt, recovery_point;
  done := found;
end
