-- report_recovery_point: a service reports the recovery point of an attempt. `state` is the key's state.
create function oncegate.report_recovery_point(
  _id bytea, _token bytea, _service text, _recovery_point text, out done boolean, out state text
)
language plpgsql
as $function$
#variable_conflict use_column
begin
  perform oncegate.begin_write('20ms');
  update oncegate.keys as k
     set recovery_point = _recovery_point
   where k.id = _id and k.token = _token and k.service = _service and k.state not in ('completed', 'expired')
  returning k.state into state;
  if not found then
    select k.state into state from oncegate.keys as k where k.id = _id and k.token = _token and k.service = _service;
  end if;
  done := found;
end
$function$
