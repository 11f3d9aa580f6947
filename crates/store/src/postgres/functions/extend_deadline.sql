-- extend_deadline: moves the deadline of an attempt in flight. It never comes earlier.
create function oncegate.extend_deadline(_id bytea, _token bytea, _time_limit_ms bigint) returns boolean
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  update oncegate.keys as k
     set deadline = greatest(k.deadline, moment + _time_limit_ms)
   where k.id = _id and k.token = _token and k.state = 'in_flight';
  return found;
end
