-- set_holder: lets a key count for another holder, if it still counts for the one that was seen.
create function oncegate.set_holder(_id bytea, _seen_holder bytea, _holder bytea) returns boolean
begin
  perform oncegate.begin_write('20ms');
  update oncegate.keys as k set holder = _holder where k.id = _id and k.holder = _seen_holder;
  return found;
end
