-- apply_inquiry_finding: applies a reconciler's verdict to an unknown key, with the reason in the audit log.
create function oncegate.apply_inquiry_finding(
  _id bytea, _token bytea, _inquiry integer, _state text, _action text, _absences integer, _ttl_ms bigint,
  {response parameters}, _note text
) returns boolean
declare
  moment constant bigint := oncegate.begin_write('20ms');
  changed record;
begin
  {inquiry_finding}
  returning k.service, k.state into changed;
  if not found then
    return false;
  end if;
  if changed.state = 'completed' then
    delete from oncegate.outbox as o where o.id = _id;
  end if;
  if changed.state <> 'unknown' then
    insert into oncegate.audit (at, service, actor, action, id, before, after, note)
    values (moment, changed.service, 'reconciler', _action, _id, 'unknown', changed.state, _note);
  end if;
  return true;
end
