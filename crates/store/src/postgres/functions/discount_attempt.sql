-- discount_attempt: an attempt under which nothing was sent does not count, while it is the newest.
create function oncegate.discount_attempt(_id bytea, _token bytea) returns boolean
begin
  perform oncegate.begin_write('20ms');
  update oncegate.outbox as o
     set attempts_before = o.attempts_before + 1
   where o.id = _id
     and o.attempts_before < (select k.attempt from oncegate.keys as k where k.id = _id and k.token = _token);
  return found;
end
