-- report: a service reports the recovery point of an attempt, or without one that it was not executed. While the
-- attempt is in flight the latter is only stored: see apply_deferred_report. `state` is the key's state before.
create function oncegate.report(
  _id bytea, _token bytea, _service text, _ttl_ms bigint, _recovery_point text, out done boolean, out state text
)
declare
  moment constant bigint := oncegate.begin_write('20ms');
  after text;
begin
  -- Locked, so that no later attempt's report is overwritten.
  select k.state into state
    from oncegate.keys as k
   where k.id = _id and k.token = _token and k.service = _service
     for no key update;
  done := found;
  if _recovery_point is not null then
    update oncegate.keys as k
       set recovery_point = _recovery_point
     where k.id = _id and k.token = _token and k.service = _service and k.state not in ('completed', 'expired');
  elsif state = 'in_flight' then
    insert into oncegate.deferred_reports as d (id, token, ttl_ms) values (_id, _token, _ttl_ms)
        on conflict (id) do update set token = excluded.token, ttl_ms = excluded.ttl_ms;
  elsif state in ('dead', 'unknown') then
    update oncegate.keys as k
       -- Only a deliverer tries an accepted key again.
       set state = case when k.accepted_at is null then 'retryable' else 'queued' end, settled_at = moment,
           expires_at = case when k.accepted_at is null then moment + _ttl_ms end,
           due_at = case when k.accepted_at is not null then moment end
     where k.id = _id
    returning k.state into after;
    insert into oncegate.audit (at, service, actor, action, id, before, after)
    values (moment, _service, 'service', 'not_executed', _id, state, after);
  end if;
end
