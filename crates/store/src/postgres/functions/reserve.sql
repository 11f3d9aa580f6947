-- reserve: reserves a key that has no record.
create function oncegate.reserve({reservation parameters}, _time_limit_ms bigint) returns boolean
declare
  moment constant bigint := oncegate.begin_write();
begin
  insert into oncegate.keys
         ({reservation names}, state, attempt, created_at, reserved_at, deadline)
  values ({reservation values}, 'in_flight', 1, moment, moment, moment + _time_limit_ms)
      on conflict (id) do nothing;
  return found;
end
