-- propose: writes an operator's proposal about a key that is still as it was seen into the audit log. The key does not
-- change, and its row is locked until the commit: another change of it comes before the proposal's entry, or after it.
create function oncegate.propose(
  _id bytea, _token bytea, _seen_state text, _service text, _actor text, _action text, _note text, out done boolean,
  out queued boolean, out purges bigint
)
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  -- Apart from the entry: a cluster takes no insert that locks the rows that it reads.
  perform from oncegate.keys as k
   where k.id = _id
     and k.service = _service
     and k.token = _token
     and k.state = _seen_state
     for no key update;
  done := found;
  queued := false;
  if done then
    insert into oncegate.audit (at, service, actor, action, id, before, after, note)
    values (moment, _service, _actor, _action, _id, _seen_state, _seen_state, _note);
  end if;
end
