-- redact: takes what belongs to its caller from a key that is still as it was seen, with the audit entry.
create function oncegate.redact(
  _id bytea, _token bytea, _seen_state text, _service text, _nothing bytea, _no_space bytea, _no_fields bytea,
  _actor text, _action text, _note text,
  out done boolean, out queued boolean, out purges bigint
)
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  update oncegate.keys as k
     set {redacted}
   where k.id = _id
     and k.service = _service
     and k.token = _token
     and k.state = _seen_state
     and k.state in ('completed', 'expired', 'retryable');
  done := found;
  queued := false;
  if not done then
    return;
  end if;
  -- Without the triggers there are no events, and on the nodes of a cluster no table of them.
  if exists (select from pg_catalog.pg_trigger as t where t.tgname = 'keys_tell_their_end') then
    update oncegate.events as e set key = null, fields = null, body = null where e.id = _id;
  end if;
  delete from oncegate.outbox as o where o.id = _id;
  -- No instance may replay what is gone.
  update oncegate.counters as c set value = c.value + 1 where c.name = 'purges' returning c.value into purges;
  insert into oncegate.audit (at, service, actor, action, id, before, after, note)
  values (moment, _service, _actor, _action, _id, _seen_state,
          case when _seen_state = 'completed' then _seen_state else 'expired' end, _note);
end
