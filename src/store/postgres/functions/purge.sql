-- purge: deletes a key that is still as it was seen, writes its audit entry, and increments the purge count.
create function oncegate.purge(
  _id bytea, _token bytea, _seen_state text, _service text, _actor text, _action text, _note text,
  out done boolean, out purges bigint
)
language plpgsql
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  delete from oncegate.keys as k
   where k.id = _id
     and k.service = _service
     and k.token = _token
     and k.state = _seen_state
     and k.state <> 'in_flight';
  done := found;
  if not done then
    return;
  end if;
  delete from oncegate.outbox as o where o.id = _id;
  update oncegate.counters as c set value = c.value + 1 where c.name = 'purges' returning c.value into purges;
  insert into oncegate.audit (at, service, actor, action, id, before, after, note)
  values (moment, _service, _actor, _action, _id, _seen_state, 'none', _note);
end
$function$
