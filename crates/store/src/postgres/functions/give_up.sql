-- give_up: marks an accepted key dead that is not tried again, with the reason in the audit log.
create function oncegate.give_up(_id bytea, _token bytea, _states text, _note text) returns boolean
declare
  moment constant bigint := oncegate.begin_write('20ms');
  seen record;
begin
  select k.service, k.state into seen from oncegate.keys as k where k.id = _id and k.state = any (string_to_array(_states, ','));
  update oncegate.keys as k
     set state = 'dead', settled_at = moment, due_at = case when seen.state <> 'unknown' then moment end
   where k.id = _id and k.token = _token and k.state = seen.state and k.accepted_at is not null;
  if not found then
    return false;
  end if;
  insert into oncegate.audit (at, service, actor, action, id, before, after, note)
  values (moment, seen.service, 'delivery', 'give_up', _id, seen.state, 'dead', _note);
  return true;
end
