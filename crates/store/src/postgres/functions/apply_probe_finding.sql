-- apply_probe_finding: applies a reconciler's verdict to an unknown key, with the reason in the audit log.
create function oncegate.apply_probe_finding(
  _id bytea, _token bytea, _probe integer, _state text, _action text, _absences integer, _ttl_ms bigint,
  _remember_ms bigint, _status smallint, _fields bytea, _body bytea, _note text
) returns boolean
declare
  moment constant bigint := oncegate.begin_write('20ms');
  changed record;
begin
  update oncegate.keys as k
     -- Only a deliverer tries an accepted key again.
     set state = case when _state = 'retryable' and k.accepted_at is not null then 'queued' else _state end,
         absences = coalesce(_absences, k.absences),
         settled_at = case when _state = 'unknown' then k.settled_at else moment end,
         expires_at = case when _state <> 'retryable' or k.accepted_at is null
                           then moment + _ttl_ms end,
         due_at = case when _state = 'retryable' and k.accepted_at is not null then moment
                       when _state = 'unknown' then k.due_at end,
         remember_ms = _remember_ms, status = _status, fields = _fields, body = _body
   where k.id = _id
     and k.token = _token
     and k.state = 'unknown'
     -- A response is proof whenever it comes. Any other verdict counts only as the answer to the last probe.
     and (_state = 'completed' or k.probes = _probe)
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
