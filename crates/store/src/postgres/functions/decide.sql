-- decide: applies an operator's decision to a key that is still as it was seen, with its audit entry. The state 'none'
-- deletes it.
create function oncegate.decide(
  _id bytea, _token bytea, _new_token bytea, _seen_state text, _service text, _state text, _ttl_ms bigint,
  {response parameters}, _quiet_after_ms bigint, _as_of bigint, _actor text, _action text,
  _note text, out done boolean, out queued boolean, out purges bigint
)
declare
  moment constant bigint := oncegate.begin_write('20ms');
  -- The caller's estimate limits the store's time. It has none where nobody has watched the clock.
  passed constant bigint := least(moment, _as_of);
  is_release constant boolean := _action = 'release';
  next text;
  attempts integer;
begin
  -- Only a deliverer tries an accepted key again; a release gives it to the next request.
  select case when k.accepted_at is null or is_release then _state
              when _state = 'retryable' or (_action = 'requeue' and k.due_at is not null) then 'queued'
              else _state end
    into next
    from oncegate.keys as k
   where k.id = _id and k.token = _token and k.state = _seen_state
     for no key update;
  if not found then
    done := false;
    return;
  end if;
  if next = 'none' then
    delete from oncegate.keys as k
     where k.id = _id and k.service = _service and k.token = _token and k.state = _seen_state and k.state <> 'in_flight';
  else
    update oncegate.keys as k
       set state = next,
           -- A withdrawn response had ended its attempt. A new token keeps that attempt from ending a second time.
           token = case when _seen_state = 'completed' then _new_token else k.token end,
           hand_token = case when next <> 'completed' then null when _seen_state = 'completed' then _new_token else k.token end,
           settled_at = case when next = 'unknown' then k.settled_at else moment end,
           expires_at = case when next <> 'queued' then moment + _ttl_ms end,
           -- A release starts the operation from the beginning.
           recovery_point = case when not is_release then k.recovery_point end,
           accepted_at = case when not is_release then k.accepted_at end,
           attempt = case when not is_release then k.attempt else greatest(k.attempt, 1) end,
           due_at = case when next = 'queued' then moment end,
           {response assignments},
           -- A key that is to be asked again is asked from the first inquiry on.
           inquiries = case when next not in ('queued', 'unknown') then k.inquiries end,
           absences = case when next not in ('queued', 'unknown') then k.absences end,
           inquire_at = null
     where k.id = _id
       and k.service = _service
       and k.token = _token
       and k.state = _seen_state
       -- A service's own response is never replaced.
       and (_action <> 'replace' or k.hand_token = k.token)
       and (_quiet_after_ms is null or k.deadline + _quiet_after_ms <= passed)
    returning k.attempt into attempts;
  end if;
  done := found;
  if not done then
    return;
  end if;
  -- Without the triggers there are no events, and on the nodes of a cluster no table of them.
  if next = 'none' and exists (select from pg_catalog.pg_trigger as t where t.tgname = 'keys_tell_their_end') then
    -- Also of the event that the deletion has just written. A receiver knows the key by its record's id.
    update oncegate.events as e set key = null, fields = null, body = null where e.id = _id;
  end if;
  queued := next = 'queued';
  if next in ('queued', 'unknown') then
    -- It has all its attempts and its time again.
    update oncegate.outbox as o set since = moment, attempts_before = attempts where o.id = _id;
  else
    delete from oncegate.outbox as o where o.id = _id;
  end if;
  if _seen_state = 'completed' or next = 'none' then
    -- No instance may replay a withdrawn response.
    update oncegate.counters as c set value = c.value + 1 where c.name = 'purges' returning c.value into purges;
  end if;
  insert into oncegate.audit (at, service, actor, action, id, before, after, note)
  values (moment, _service, _actor, _action, _id, _seen_state, next, _note);
end
