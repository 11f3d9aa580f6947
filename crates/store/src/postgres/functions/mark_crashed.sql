-- mark_crashed: makes a key unknown whose attempt nobody can be running any more.
create function oncegate.mark_crashed(_id bytea, _token bytea, _instance bigint, _expiry_ms bigint, _as_of bigint) returns boolean
declare
  moment constant bigint := oncegate.begin_write('20ms');
  -- The caller's estimate limits the store's time: a clock that was set forward ends nothing early.
  passed constant bigint := least(moment, _as_of);
  is_leased constant boolean := exists (
    select from oncegate.instances as i
     where i.id = _instance
       and i.lease_until > passed
       -- Otherwise the clock was set back, and the instance has not renewed its lease since.
       and i.renewed_at <= greatest(moment, _as_of) + _expiry_ms);
begin
  update oncegate.keys as k
     set state = 'unknown', settled_at = moment, cause = 'crashed'
   where k.id = _id and k.token = _token and k.state = 'in_flight'
     and (not is_leased or k.deadline <= passed - _expiry_ms);
  return found;
end
