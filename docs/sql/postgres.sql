-- PostgreSQL: the functions, the statements, and the triggers of events, as they are sent.
-- Made by `make docs-write` from crates/store/src. The schema is in migrations.

-- apply_deferred_report: makes a key retryable whose service reported "not executed" while the attempt ran, if the
-- attempt has ended since without a response. A report whose attempt ended otherwise is deleted.
create or replace function oncegate.apply_deferred_report_556df55c(_id bytea, _token bytea) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  seen record;
  reported_ttl_ms bigint;
begin
  perform oncegate.begin_write('20ms');
  select k.service, k.state, k.cause into seen
    from oncegate.keys as k
   where k.id = _id and k.token = _token
     for no key update;
  if seen.state = 'in_flight' then
    return false;
  end if;
  delete from oncegate.deferred_reports as d where d.id = _id and d.token = _token returning d.ttl_ms into reported_ttl_ms;
  -- After a response that leaves the outcome unknown, the cause is another one, and the response decides.
  if reported_ttl_ms is not null and seen.state in ('dead', 'unknown')
     and (seen.cause is null or seen.cause in ('broken', 'crashed', 'store', 'timeout')) then
    perform oncegate.report_856132b1(_id, _token, seen.service, reported_ttl_ms, null);
    return true;
  end if;
  return false;
end
$function$;

-- apply_inquiry_finding: applies a reconciler's verdict to an unknown key, with the reason in the audit log.
create or replace function oncegate.apply_inquiry_finding_52c417cf(
  _id bytea, _token bytea, _inquiry integer, _state text, _action text, _absences integer, _ttl_ms bigint,
  _remember_ms bigint, _status smallint, _fields bytea, _body bytea, _note text
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write('20ms');
  changed record;
begin
  -- inquiry_finding: applies a reconciler's verdict to an unknown key. Only a deliverer tries an accepted key again. A
  -- response is proof whenever it comes. Any other verdict counts only as the answer to the last inquiry.
  update oncegate.keys as k
     set state = case when _state = 'retryable' and k.accepted_at is not null then 'queued' else _state end,
         absences = coalesce(_absences, k.absences),
         settled_at = case when _state = 'unknown' then k.settled_at else moment end,
         expires_at = case when _state <> 'retryable' or k.accepted_at is null then moment + _ttl_ms end,
         due_at = case when _state = 'retryable' and k.accepted_at is not null then moment
                       when _state = 'unknown' then k.due_at end,
         remember_ms = _remember_ms, status = _status, fields = _fields, body = _body
   where k.id = _id
     and k.token = _token
     and k.state = 'unknown'
     and (_state = 'completed' or k.inquiries = _inquiry)
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
$function$;

-- claim_inquiry: claims an unknown key for an inquiry. Counts the inquiry and sets the time of the next before the service is
-- asked.
create or replace function oncegate.claim_inquiry_b9c88bfc(
  _id bytea, _token bytea, _as_of bigint, _quiet_after_ms bigint, _pause_first_ms bigint, _pause_cap_ms bigint,
  out done boolean, out id bytea, out token bytea, out scope bytea, out key bytea, out route text, out path bytea,
  out inquiries integer, out absences integer, out settled_at bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write('20ms');
  due constant bigint := least(moment, _as_of);
  -- Up to a quarter longer, so that keys that became unknown together are asked about apart.
  longer constant double precision := 1 + random() / 4;
begin
  update oncegate.keys as k
     set inquiries = coalesce(k.inquiries, 0) + 1,
         absences = coalesce(k.absences, 0),
         inquire_at = moment + (longer * least(_pause_first_ms * power(2, least(coalesce(k.inquiries, 0), 30)), _pause_cap_ms))::bigint
   where k.id = _id
     and k.token = _token
     and k.state = 'unknown'
     and coalesce(k.inquire_at, k.settled_at) <= due
     -- Before that, the service could answer "not executed" for a request that is still on its way.
     and k.deadline + _quiet_after_ms <= due
  returning k.id, k.token, k.scope, k.key, k.route, k.path, k.inquiries, k.absences, k.settled_at
    into id, token, scope, key, route, path, inquiries, absences, settled_at;
  done := found;
end
$function$;

-- count_live_keys: a holder's keys, up to a limit: by the index alone, where the pages are vacuumed.
--
-- The settings hold inside the function only. Where one holder has a large part of the table, the planner would read
-- the table until it has found enough rows; these may be at its end.
create or replace function oncegate.count_live_keys_9498997e(_holder bytea, _limit bigint, out done boolean, out count bigint)
stable
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
begin
  select true, count(*) into done, count from (select 1 from oncegate.keys as k where k.holder = _holder limit _limit) as live;
end
$function$;

-- decide: applies an operator's decision to a key that is still as it was seen, with its audit entry. The state 'none'
-- deletes it.
create or replace function oncegate.decide_f9dc329a(
  _id bytea, _token bytea, _new_token bytea, _seen_state text, _service text, _state text, _ttl_ms bigint,
  _remember_ms bigint, _status smallint, _fields bytea, _body bytea, _quiet_after_ms bigint, _as_of bigint, _actor text, _action text,
  _note text, out done boolean, out queued boolean, out purges bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
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
           remember_ms = _remember_ms, status = _status, fields = _fields, body = _body,
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
$function$;

-- discount_attempt: an attempt under which nothing was sent does not count, while it is the newest.
create or replace function oncegate.discount_attempt_77542971(_id bytea, _token bytea) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
begin
  perform oncegate.begin_write('20ms');
  update oncegate.outbox as o
     set attempts_before = o.attempts_before + 1
   where o.id = _id
     and o.attempts_before < (select k.attempt from oncegate.keys as k where k.id = _id and k.token = _token);
  return found;
end
$function$;

-- end_delivery: deletes the request of a key that was delivered. Spares the request of a later life, if the key is
-- accepted anew at this moment.
create or replace function oncegate.end_delivery_46c9dc23(_id bytea) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
begin
  perform oncegate.begin_write('20ms');
  -- Locked, so that the key is not accepted anew before its old request is gone.
  perform from oncegate.keys as k where k.id = _id and k.state in ('completed', 'expired', 'retryable') for no key update;
  if not found then
    return false;
  end if;
  delete from oncegate.outbox as o where o.id = _id;
  return found;
end
$function$;

-- enqueue: reserves or accepts a key, with its request: an attempt begins where it has a time limit, and else the key
-- waits for its delivery. A key with a record is taken if its record is still as it was seen; past its TTL a new life
-- begins.
create or replace function oncegate.enqueue_1afac13d(
  _id bytea, _service text, _scope bytea, _space bytea, _key bytea, _path bytea, _route text, _recipe text, _fingerprint bytea, _parts bytea, _trace_id bytea, _client_address text, _lookups bytea, _instance bigint, _token bytea, _holder bytea, _time_limit_ms bigint, _secret text, _sealed bytea,
  _seen_token bytea, _seen_state text, _past_ttl_at bigint, _redelivered boolean,
  out done boolean, out attempt integer, out recovery_point text
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write('20ms');
  starts constant boolean := _time_limit_ms is not null;
  first constant integer := case when starts then 1 else 0 end;
begin
  if _seen_token is null then
    insert into oncegate.keys as k
           (id, service, scope, space, key, path, route, recipe, fingerprint, parts, trace_id, client_address, lookups, instance, token, holder, state, attempt, created_at, reserved_at, deadline, settled_at, accepted_at, due_at)
    values (_id, _service, _scope, _space, _key, _path, _route, _recipe, _fingerprint, _parts, _trace_id, _client_address, _lookups, _instance, _token, _holder, case when starts then 'in_flight' else 'queued' end, first, moment, moment,
            moment + coalesce(_time_limit_ms, 0), case when not starts then moment end,
            case when not starts then moment end, moment)
        on conflict (id) do nothing
    returning k.attempt into attempt;
  else
    update oncegate.keys as k
       set state = case when starts then 'in_flight' else 'queued' end,
           attempt = case when _past_ttl_at is null then k.attempt else 0 end + first,
           deadline = moment + coalesce(_time_limit_ms, 0), settled_at = case when not starts then moment end,
           accepted_at = case when not starts then moment end, due_at = moment,
           -- taken_over: the columns of a key that the next request has taken over. Past its TTL a new life begins.
           space = _space, key = _key, path = _path, route = _route, recipe = _recipe, fingerprint = _fingerprint, parts = _parts, trace_id = _trace_id, client_address = _client_address, lookups = _lookups, instance = _instance, token = _token,
           created_at = case when _past_ttl_at is null then k.created_at else moment end,
           reserved_at = moment,
           remember_ms = null, status = null, fields = null, body = null, cause = null, inquiries = null, absences = null, inquire_at = null, expires_at = null,
           recovery_point = case when _past_ttl_at is null then k.recovery_point end,
           earlier = case when _past_ttl_at is null then oncegate.with_attempt(k.earlier, k.attempt, k.instance, k.reserved_at, k.settled_at, k.accepted_at, k.state, k.cause) end
     where
       -- may_take_over: whether the next request may have a key, whose record must be as it was seen. Nobody takes over a key
       -- that is running or queued, awaits an operator, or has a response within its TTL. The TTL has passed as of the time
       -- when it was seen: nobody has judged one that was written since. A redelivery does not wait for the end of the time for
       -- which a key is remembered past its TTL.
       k.id = _id
       and k.token = _seen_token
       and k.state = _seen_state
       and k.state not in ('dead', 'in_flight', 'queued')
       and (k.state not in ('completed', 'expired') or _past_ttl_at is not null)
       and (_past_ttl_at is null
            or (_redelivered and k.state = 'expired')
            or k.expires_at + case when _redelivered then 0 else coalesce(k.remember_ms, 0) end
               <= case when _past_ttl_at < moment then _past_ttl_at else moment end)
    returning k.attempt, k.recovery_point into attempt, recovery_point;
  end if;
  done := found;
  if not done then
    return;
  end if;
  insert into oncegate.outbox as o (id, since, attempts_before, secret, sealed)
  values (_id, moment, attempt - first, _secret, _sealed)
      -- A request that is left over from an earlier life of the key.
      on conflict (id) do update
     set since = excluded.since, attempts_before = excluded.attempts_before, secret = excluded.secret,
         sealed = excluded.sealed;
end
$function$;

-- extend_deadline: moves the deadline of an attempt in flight. It never comes earlier.
create or replace function oncegate.extend_deadline_6421a8f6(_id bytea, _token bytea, _time_limit_ms bigint) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  update oncegate.keys as k
     set deadline = greatest(k.deadline, moment + _time_limit_ms)
   where k.id = _id and k.token = _token and k.state = 'in_flight';
  return found;
end
$function$;

-- give_up: marks an accepted key dead that is not tried again, with the reason in the audit log.
create or replace function oncegate.give_up_347788b5(_id bytea, _token bytea, _states text, _note text) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
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
$function$;

-- mark_crashed: makes a key unknown whose attempt nobody can be running any more.
create or replace function oncegate.mark_crashed_1a74f9f0(_id bytea, _token bytea, _instance bigint, _expiry_ms bigint, _as_of bigint) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write('20ms');
  -- The caller's estimate limits the store's time: a clock that was set forward ends nothing early.
  passed constant bigint := least(moment, _as_of);
  is_leased constant boolean := exists (
    select from oncegate.instances as i
     where i.id = _instance
       and i.lease_until > passed
       -- Otherwise the clock was set back, and the instance has not renewed its lease since.
       and i.renewed_at <= greatest(moment, _as_of) + _expiry_ms);
begin
  update oncegate.keys as k
     set state = 'unknown', settled_at = moment, cause = 'crashed'
   where k.id = _id and k.token = _token and k.state = 'in_flight'
     and (not is_leased or k.deadline <= passed - _expiry_ms);
  return found;
end
$function$;

-- propose: writes an operator's proposal about a key that is still as it was seen into the audit log. The key does not
-- change, and its row is locked until the commit: another change of it comes before the proposal's entry, or after it.
create or replace function oncegate.propose_0b974942(
  _id bytea, _token bytea, _seen_state text, _service text, _actor text, _action text, _note text, out done boolean,
  out queued boolean, out purges bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
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
$function$;

-- reap: deletes those of the records that are past their TTL; of those that are remembered it drops the response only.
-- Many ids at once: as many records must go as come.
create or replace function oncegate.reap_2ce56774(
  _id bytea[], _as_of bigint, _settled_since bigint, out done boolean, out deleted bigint, out responses_dropped bigint
)
set enable_seqscan = off
set jit = off
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  passed constant bigint := least(oncegate.begin_write('20ms'), _as_of);
begin
  delete from oncegate.keys as k
   where k.id = any (_id) and k.expires_at <= passed and k.settled_at >= _settled_since and k.remember_ms is null;
  get diagnostics deleted = row_count;
  update oncegate.keys as k
     set state = 'expired', expires_at = k.expires_at + k.remember_ms, remember_ms = null, status = null, fields = null, body = null
   where k.id = any (_id) and k.expires_at <= passed and k.settled_at >= _settled_since and k.remember_ms is not null;
  get diagnostics responses_dropped = row_count;
  -- Requests that were not deleted when their keys were completed. A key that is accepted anew waits for the statements
  -- above, or is queued by now.
  delete from oncegate.outbox as o
   where o.id = any (_id)
     and not exists (select from oncegate.keys as k where k.id = o.id and k.state <> 'expired');
  done := true;
end
$function$;

-- redact: takes what belongs to its caller from a key that is still as it was seen, with the audit entry.
create or replace function oncegate.redact_481e0f62(
  _id bytea, _token bytea, _seen_state text, _service text, _nothing bytea, _no_space bytea, _no_fields bytea,
  _actor text, _action text, _note text,
  out done boolean, out queued boolean, out purges bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  update oncegate.keys as k
     set -- redacted: the columns of a key without what belongs to its caller. It stays, so that no retry is executed: one that
     -- was not executed is refused as late, and a response that is not kept is not replayed.
     key = _nothing, space = _no_space, holder = null, path = null, parts = null, trace_id = null, client_address = null,
     lookups = null, recovery_point = null,
     hand_token = null, body = null, fields = case when k.state = 'completed' then _no_fields end,
     state = case when k.state = 'completed' then k.state else 'expired' end
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
$function$;

-- renew_lease: takes or renews an instance's lease, stores which purges it has seen, and returns the time, the purge
-- count, and the time until which the ends of TTLs are held.
create or replace function oncegate.renew_lease_79b903bd(
  _id bigint, _services text, _expiry_ms bigint, _purges_seen bigint, _hold_ttls_until bigint,
  out done boolean, out now bigint, out purges bigint, out ttls_held_until bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
begin
  now := oncegate.begin_write();
  ttls_held_until := coalesce((select c.value from oncegate.counters as c where c.name = 'ttls_held_until'), 0);
  -- Another counter beside `purges`. Each heartbeat tells it while it lasts: where it does not grow, no renewal waits
  -- for another's.
  if _hold_ttls_until > ttls_held_until then
    insert into oncegate.counters as c (name, value) values ('ttls_held_until', _hold_ttls_until)
        on conflict (name) do update set value = greatest(c.value, excluded.value)
        returning c.value into ttls_held_until;
  end if;
  purges := coalesce((select c.value from oncegate.counters as c where c.name = 'purges'), 0);
  insert into oncegate.instances as i (id, started_at, renewed_at, lease_until, services, purges_seen)
  -- An instance that has just started has cached nothing.
  values (_id, now, now, now + _expiry_ms, _services, coalesce(_purges_seen, purges))
      on conflict (id) do update
     set renewed_at = excluded.renewed_at, lease_until = excluded.lease_until, services = excluded.services,
         -- A first renewal that runs after later ones says nothing about what was cached since.
         purges_seen = coalesce(_purges_seen, i.purges_seen);
  done := true;
end
$function$;

-- report: a service reports the recovery point of an attempt, or without one that it was not executed. While the
-- attempt is in flight the latter is only stored: see apply_deferred_report. `state` is the key's state before.
create or replace function oncegate.report_856132b1(
  _id bytea, _token bytea, _service text, _ttl_ms bigint, _recovery_point text, out done boolean, out state text
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
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
$function$;

-- reserve: reserves a key that has no record.
create or replace function oncegate.reserve_5a88ff30(_id bytea, _service text, _scope bytea, _space bytea, _key bytea, _path bytea, _route text, _recipe text, _fingerprint bytea, _parts bytea, _trace_id bytea, _client_address text, _lookups bytea, _instance bigint, _token bytea, _holder bytea, _time_limit_ms bigint) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write();
begin
  insert into oncegate.keys
         (id, service, scope, space, key, path, route, recipe, fingerprint, parts, trace_id, client_address, lookups, instance, token, holder, state, attempt, created_at, reserved_at, deadline)
  values (_id, _service, _scope, _space, _key, _path, _route, _recipe, _fingerprint, _parts, _trace_id, _client_address, _lookups, _instance, _token, _holder, 'in_flight', 1, moment, moment, moment + _time_limit_ms)
      on conflict (id) do nothing;
  return found;
end
$function$;

-- reserve_all: reserve for many keys at once. It returns those that it has reserved.
--
-- The settings hold inside the function only. A plan that is kept was made for a table that may have been empty: it
-- must be the one that is right for a large one, and that is always the primary key, row by row.
create or replace function oncegate.reserve_all_c283f56a(_id bytea[], _service text[], _scope bytea[], _space bytea[], _key bytea[], _path bytea[], _route text[], _recipe text[], _fingerprint bytea[], _parts bytea[], _trace_id bytea[], _client_address text[], _lookups bytea[], _instance bigint[], _token bytea[], _holder bytea[], _time_limit_ms bigint[]) returns table (id bytea)
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write();
begin
  return query
  insert into oncegate.keys
         (id, service, scope, space, key, path, route, recipe, fingerprint, parts, trace_id, client_address, lookups, instance, token, holder, state, attempt, created_at, reserved_at, deadline)
  select _id[i], _service[i], _scope[i], _space[i], _key[i], _path[i], _route[i], _recipe[i], _fingerprint[i], _parts[i], _trace_id[i], _client_address[i], _lookups[i], _instance[i], _token[i], _holder[i], 'in_flight', 1, moment, moment, moment + _time_limit_ms[i]
    -- By place: `unnest` of so many arrays makes a table of each one first, which cost a batch a tenth of its time. In
    -- the order of ids, for two batches with two keys in common must not deadlock.
    from (select i from generate_series(1, cardinality(_id)) as g (i) order by _id[i]) as s
      on conflict (id) do nothing
  returning id;
end
$function$;

-- reserve_each: reserve for many keys of a cluster, one after the other. It returns those that it has reserved.
create or replace function oncegate.reserve_each_57b96ef4(_id bytea[], _service text[], _scope bytea[], _space bytea[], _key bytea[], _path bytea[], _route text[], _recipe text[], _fingerprint bytea[], _parts bytea[], _trace_id bytea[], _client_address text[], _lookups bytea[], _instance bigint[], _token bytea[], _holder bytea[], _time_limit_ms bigint[]) returns table (id bytea)
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
begin
  for i in 1 .. array_length(_id, 1) loop
    if oncegate.reserve_5a88ff30(_id[i], _service[i], _scope[i], _space[i], _key[i], _path[i], _route[i], _recipe[i], _fingerprint[i], _parts[i], _trace_id[i], _client_address[i], _lookups[i], _instance[i], _token[i], _holder[i], _time_limit_ms[i]) then
      id := _id[i];
      return next;
    end if;
  end loop;
end
$function$;

-- restore: writes the row of an ended attempt that the store has lost.
create or replace function oncegate.restore_bab3e130(
  _id bytea, _service text, _scope bytea, _space bytea, _key bytea, _path bytea, _route text, _recipe text, _fingerprint bytea, _parts bytea, _trace_id bytea, _client_address text, _lookups bytea, _instance bigint, _token bytea, _holder bytea, _time_limit_ms bigint, _state text, _ttl_ms bigint, _remember_ms bigint, _status smallint, _fields bytea, _body bytea, _cause text, _due_ms bigint,
  _attempt integer, _accepted_at bigint, _replaced_token bytea, _replaced_was_completed boolean,
  out done boolean, out expires_at bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  -- restored: the whole row of an ended attempt that the store has lost, or whose takeover it has lost. The time when it
  -- began is lost. Late is the safe side: an unknown key becomes quiet later than it could. A completed record may also
  -- have been reaped or purged, and this be its settlement a second time, after an outage. Then it lives for one more
  -- TTL.
  insert into oncegate.keys as k
         (id, service, scope, space, key, path, route, recipe, fingerprint, parts, trace_id, client_address, lookups, instance, token, holder, attempt, created_at, reserved_at, deadline, state, settled_at, expires_at, remember_ms, status, fields, body, cause,
          accepted_at, due_at)
  values (_id, _service, _scope, _space, _key, _path, _route, _recipe, _fingerprint, _parts, _trace_id, _client_address, _lookups, _instance, _token, _holder, _attempt, moment, moment, moment + _time_limit_ms, _state, moment, moment + _ttl_ms, _remember_ms, _status, _fields, _body, _cause,
          _accepted_at, case when _accepted_at is not null then moment + _due_ms end)
      on conflict (id) do update
     set space = excluded.space, key = excluded.key, path = excluded.path, route = excluded.route, recipe = excluded.recipe, fingerprint = excluded.fingerprint, parts = excluded.parts, trace_id = excluded.trace_id, client_address = excluded.client_address, lookups = excluded.lookups, instance = excluded.instance, token = excluded.token, remember_ms = excluded.remember_ms, status = excluded.status, fields = excluded.fields, body = excluded.body, cause = excluded.cause, state = excluded.state, attempt = excluded.attempt,
         reserved_at = excluded.reserved_at, deadline = excluded.deadline, settled_at = excluded.settled_at,
         expires_at = excluded.expires_at, accepted_at = excluded.accepted_at, due_at = excluded.due_at,
         inquiries = null, absences = null, inquire_at = null,
         created_at = case when k.attempt < excluded.attempt then k.created_at else excluded.created_at end,
         recovery_point = case when k.attempt < excluded.attempt then k.recovery_point end,
         earlier = case when k.attempt < excluded.attempt then k.earlier end
   -- Only the row that the takeover had replaced: each attempt replaces the token, so none has begun since.
   where k.token = _replaced_token
     -- A row that was completed only since it was lost keeps its response.
     and (_replaced_was_completed or k.state not in ('completed', 'expired'))
     -- One that was given up since counts as any other that is dead: a response settles it.
     and (k.state <> 'dead' or excluded.state = 'completed')
  returning k.expires_at into expires_at;
  done := found;
end
$function$;

-- set_holder: lets a key count for another holder, if it still counts for the one that was seen.
create or replace function oncegate.set_holder_07b656d7(_id bytea, _seen_holder bytea, _holder bytea) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
begin
  perform oncegate.begin_write('20ms');
  update oncegate.keys as k set holder = _holder where k.id = _id and k.holder = _seen_holder;
  return found;
end
$function$;

-- settle: ends an attempt. A completed key stays as it is.
create or replace function oncegate.settle_7e736d1c(
  _id bytea, _token bytea, _state text, _ttl_ms bigint, _remember_ms bigint, _status smallint, _fields bytea, _body bytea, _cause text, _due_ms bigint, out done boolean, out expires_at bigint
)
-- A plan that is kept was made for a table that may have been empty: it must be the one that is right for a large one.
set enable_seqscan = off
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  if _state = 'retryable' and _ttl_ms = 0 then
    delete from oncegate.keys as k
     where
       -- may_forget: whether an attempt that the service has refused to its caller may end with the deletion of its key. An
       -- accepted key is queued again instead. The next attempt has to know of earlier ones, and how far they have come.
       -- may_settle: whether an attempt may settle its key. Only the newest attempt's token fits. A response counts whatever
       -- the key has become meanwhile. Any other outcome undoes nothing that the service, a reconciler or an operator has
       -- decided since.
       k.id = _id
       and k.token = _token
       and case
             when _state = 'completed' then k.state not in ('completed', 'expired')
             when _state = 'retryable' then k.state in ('in_flight', 'unknown') or (k.state = 'dead' and k.accepted_at is null)
             else k.state = 'in_flight'
           end
       and k.accepted_at is null
       and k.attempt = 1
       and k.recovery_point is null;
    done := found;
    if done then
      -- Its request, if it was kept.
      delete from oncegate.outbox as o where o.id = _id;
      return;
    end if;
  end if;
  update oncegate.keys as k
     set
       -- settled: the columns of a key whose attempt has ended. An accepted one is queued for the next delivery: no other
       -- request may take it over. A kept request stays due while its outcome is unknown, and so does one whose repetition (it
       -- was due before) was not executed: the attempt before may have been. One that may_forget has left is remembered for a
       -- day.
       state = case when _state <> 'retryable' then _state
                    when k.accepted_at is not null then 'queued'
                    when k.due_at < k.reserved_at then 'unknown'
                    else _state end,
       settled_at = moment,
       expires_at = case when _state <> 'retryable' or (k.accepted_at is null and coalesce(k.due_at >= k.reserved_at, true))
                         then moment + case when _ttl_ms = 0 and _state = 'retryable' then 86400000 else _ttl_ms end
                    end,
       due_at = case when _state = 'unknown' and k.accepted_at is null
                       then case when k.due_at is not null then moment + coalesce(_due_ms, 0) end
                     when _state = 'unknown' then moment + _due_ms
                     when _state = 'retryable' and (k.accepted_at is not null or k.due_at < k.reserved_at)
                       then moment + coalesce(_due_ms, 0) end,
       remember_ms = _remember_ms, status = _status, fields = _fields, body = _body, cause = _cause
   where
     -- may_settle: whether an attempt may settle its key. Only the newest attempt's token fits. A response counts whatever
     -- the key has become meanwhile. Any other outcome undoes nothing that the service, a reconciler or an operator has
     -- decided since.
     k.id = _id
     and k.token = _token
     and case
           when _state = 'completed' then k.state not in ('completed', 'expired')
           when _state = 'retryable' then k.state in ('in_flight', 'unknown') or (k.state = 'dead' and k.accepted_at is null)
           else k.state = 'in_flight'
         end
  returning k.expires_at into expires_at;
  done := found;
end
$function$;

-- settle_all: settle for many attempts at once. It returns those that it has ended.
create or replace function oncegate.settle_all_7f48ebb6(
  _id bytea[], _token bytea[], _state text[], _ttl_ms bigint[], _remember_ms bigint[], _status smallint[], _fields bytea[], _body bytea[], _cause text[], _due_ms bigint[]
) returns table (id bytea, expires_at bigint)
-- As for reserve_all.
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  -- Few batches have such a key, and only they pay for the second statement. Where no TTL is 0 and one is null, the
  -- condition is null, which counts as false.
  if 0 = any (_ttl_ms) then
    return query
    with forgotten as (
      delete from oncegate.keys as k
       using unnest(_id, _token, _state, _ttl_ms) as s (id, token, state, ttl_ms)
       where s.state = 'retryable' and s.ttl_ms = 0 and
         -- may_forget: whether an attempt that the service has refused to its caller may end with the deletion of its key. An
         -- accepted key is queued again instead. The next attempt has to know of earlier ones, and how far they have come.
         -- may_settle: whether an attempt may settle its key. Only the newest attempt's token fits. A response counts whatever
         -- the key has become meanwhile. Any other outcome undoes nothing that the service, a reconciler or an operator has
         -- decided since.
         k.id = s.id
         and k.token = s.token
         and case
               when s.state = 'completed' then k.state not in ('completed', 'expired')
               when s.state = 'retryable' then k.state in ('in_flight', 'unknown') or (k.state = 'dead' and k.accepted_at is null)
               else k.state = 'in_flight'
             end
         and k.accepted_at is null
         and k.attempt = 1
         and k.recovery_point is null
      returning k.id),
    -- Their requests, if they were kept.
    requests as (delete from oncegate.outbox as o using forgotten where o.id = forgotten.id)
    select forgotten.id, null::bigint from forgotten;
  end if;
  return query
  update oncegate.keys as k
     set
       -- settled: the columns of a key whose attempt has ended. An accepted one is queued for the next delivery: no other
       -- request may take it over. A kept request stays due while its outcome is unknown, and so does one whose repetition (it
       -- was due before) was not executed: the attempt before may have been. One that may_forget has left is remembered for a
       -- day.
       state = case when s.state <> 'retryable' then s.state
                    when k.accepted_at is not null then 'queued'
                    when k.due_at < k.reserved_at then 'unknown'
                    else s.state end,
       settled_at = moment,
       expires_at = case when s.state <> 'retryable' or (k.accepted_at is null and coalesce(k.due_at >= k.reserved_at, true))
                         then moment + case when s.ttl_ms = 0 and s.state = 'retryable' then 86400000 else s.ttl_ms end
                    end,
       due_at = case when s.state = 'unknown' and k.accepted_at is null
                       then case when k.due_at is not null then moment + coalesce(s.due_ms, 0) end
                     when s.state = 'unknown' then moment + s.due_ms
                     when s.state = 'retryable' and (k.accepted_at is not null or k.due_at < k.reserved_at)
                       then moment + coalesce(s.due_ms, 0) end,
       remember_ms = s.remember_ms, status = s.status, fields = s.fields, body = s.body, cause = s.cause
    -- By place, as there.
    from (select _id[i] as id, _token[i] as token, _state[i] as state, _ttl_ms[i] as ttl_ms, _remember_ms[i] as remember_ms, _status[i] as status, _fields[i] as fields, _body[i] as body, _cause[i] as cause,
                 _due_ms[i] as due_ms
            from generate_series(1, cardinality(_id)) as g (i)) as s
   where
     -- may_settle: whether an attempt may settle its key. Only the newest attempt's token fits. A response counts whatever
     -- the key has become meanwhile. Any other outcome undoes nothing that the service, a reconciler or an operator has
     -- decided since.
     k.id = s.id
     and k.token = s.token
     and case
           when s.state = 'completed' then k.state not in ('completed', 'expired')
           when s.state = 'retryable' then k.state in ('in_flight', 'unknown') or (k.state = 'dead' and k.accepted_at is null)
           else k.state = 'in_flight'
         end
  returning k.id, k.expires_at;
end
$function$;

-- settle_each: settle for many attempts of a cluster, one after the other. It returns those that it has ended.
create or replace function oncegate.settle_each_92bc23f6(
  _id bytea[], _token bytea[], _state text[], _ttl_ms bigint[], _remember_ms bigint[], _status smallint[], _fields bytea[], _body bytea[], _cause text[], _due_ms bigint[]
) returns table (id bytea, expires_at bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  settled record;
begin
  for i in 1 .. array_length(_id, 1) loop
    settled := oncegate.settle_7e736d1c(_id[i], _token[i], _state[i], _ttl_ms[i], _remember_ms[i], _status[i], _fields[i], _body[i], _cause[i], _due_ms[i]);
    if settled.done then
      id := _id[i];
      expires_at := settled.expires_at;
      return next;
    end if;
  end loop;
end
$function$;

-- start_delivery: starts the next attempt of a key that is still as it was seen, with its kept request, or marks an
-- accepted one dead where its policy gives it up; `note` says why then. Without a token no attempt begins. A key that was
-- not accepted is repeated while its window is open, and gets no other attempt: see
-- docs/decisions/0031-repeat-on-the-vendors-word.md.
create or replace function oncegate.start_delivery_6de5db4a(
  _id bytea, _seen_token bytea, _seen_state text, _token bytea, _instance bigint, _time_limit_ms bigint,
  _max_attempts integer, _give_up_after_ms bigint, _quiet_after_ms bigint, _repeat_within_ms bigint, _as_of bigint,
  out done boolean, out note text, out scope bytea, out space bytea, out key bytea, out path bytea, out recipe text,
  out fingerprint bytea, out parts bytea, out attempt integer, out recovery_point text, out accepted_at bigint, out spent integer,
  out give_up_in_ms bigint, out secret text, out sealed bytea
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write('20ms');
  due constant bigint := least(moment, _as_of);
  give_up_at bigint;
  is_repeat boolean;
  is_open boolean;
begin
  select k.attempt - o.attempts_before, o.since + _give_up_after_ms, o.secret, o.sealed,
         k.accepted_at is null, coalesce(o.since + _repeat_within_ms > greatest(moment, _as_of), false)
    into spent, give_up_at, secret, sealed, is_repeat, is_open
    from oncegate.keys as k
    left join oncegate.outbox as o on o.id = k.id
   where k.id = _id
     -- On a cluster the caller has not locked it: an operator may be giving it all its attempts again.
     for no key update of k;
  if is_repeat and not is_open then
    update oncegate.keys as k
       set due_at = null
     where k.id = _id and k.token = _seen_token and k.state = _seen_state and k.accepted_at is null;
    done := false;
    return;
  end if;
  note := case
            when is_repeat then null
            when sealed is null then 'its request is not in the store any more'
            when spent >= _max_attempts then format('tried %s times', spent)
            when give_up_at <= due then format('not delivered in time, after %s attempts', spent)
          end;
  if note is not null or _token is null then
    sealed := null;
    done := case when note is null then false else oncegate.give_up_347788b5(_id, _seen_token, _seen_state, note) end;
    return;
  end if;
  update oncegate.keys as k
     set state = 'in_flight', attempt = k.attempt + 1, token = _token, instance = _instance,
         reserved_at = moment, deadline = moment + _time_limit_ms,
         settled_at = null, due_at = case when k.accepted_at is null then least(k.due_at, moment - 1) end,
         remember_ms = null, status = null, fields = null, body = null, cause = null, inquiries = null, absences = null, inquire_at = null, expires_at = null,
         earlier = oncegate.with_attempt(k.earlier, k.attempt, k.instance, k.reserved_at, k.settled_at, k.accepted_at, k.state, k.cause)
   where k.id = _id
     and k.token = _seen_token
     and k.state = _seen_state
     and (k.accepted_at is not null or (is_open and k.due_at is not null))
     and coalesce(k.due_at, k.settled_at) <= due
     -- The last attempt of an unknown key cannot be running any more, unless the route accepts that.
     and (_seen_state <> 'unknown' or _quiet_after_ms is null or k.deadline + _quiet_after_ms <= due)
  returning k.scope, k.space, k.key, k.path, k.recipe, k.fingerprint, k.parts, k.attempt, k.recovery_point, k.accepted_at
    into scope, space, key, path, recipe, fingerprint, parts, attempt, recovery_point, accepted_at;
  done := found;
  give_up_in_ms := give_up_at - moment;
end
$function$;

-- take_over: starts the next attempt of a key, if its record is still as it was seen; past its TTL a new life begins.
create or replace function oncegate.take_over_5d8b4284(
  _id bytea, _space bytea, _key bytea, _path bytea, _route text, _recipe text, _fingerprint bytea, _parts bytea, _trace_id bytea, _client_address text, _lookups bytea, _instance bigint, _token bytea, _time_limit_ms bigint, _seen_token bytea, _seen_state text, _past_ttl_at bigint, _redelivered boolean,
  out done boolean, out attempt integer, out recovery_point text
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  update oncegate.keys as k
     set state = 'in_flight', attempt = case when _past_ttl_at is null then k.attempt + 1 else 1 end,
         deadline = moment + _time_limit_ms, settled_at = null, accepted_at = null, due_at = null,
         -- taken_over: the columns of a key that the next request has taken over. Past its TTL a new life begins.
         space = _space, key = _key, path = _path, route = _route, recipe = _recipe, fingerprint = _fingerprint, parts = _parts, trace_id = _trace_id, client_address = _client_address, lookups = _lookups, instance = _instance, token = _token,
         created_at = case when _past_ttl_at is null then k.created_at else moment end,
         reserved_at = moment,
         remember_ms = null, status = null, fields = null, body = null, cause = null, inquiries = null, absences = null, inquire_at = null, expires_at = null,
         recovery_point = case when _past_ttl_at is null then k.recovery_point end,
         earlier = case when _past_ttl_at is null then oncegate.with_attempt(k.earlier, k.attempt, k.instance, k.reserved_at, k.settled_at, k.accepted_at, k.state, k.cause) end
   where
     -- may_take_over: whether the next request may have a key, whose record must be as it was seen. Nobody takes over a key
     -- that is running or queued, awaits an operator, or has a response within its TTL. The TTL has passed as of the time
     -- when it was seen: nobody has judged one that was written since. A redelivery does not wait for the end of the time for
     -- which a key is remembered past its TTL.
     k.id = _id
     and k.token = _seen_token
     and k.state = _seen_state
     and k.state not in ('dead', 'in_flight', 'queued')
     and (k.state not in ('completed', 'expired') or _past_ttl_at is not null)
     and (_past_ttl_at is null
          or (_redelivered and k.state = 'expired')
          or k.expires_at + case when _redelivered then 0 else coalesce(k.remember_ms, 0) end
             <= case when _past_ttl_at < moment then _past_ttl_at else moment end)
  returning k.attempt, k.recovery_point into attempt, recovery_point;
  done := found;
end
$function$;

-- add_weekly_counts: adds a batch of an instance's counts to the week that has begun, unless it was added before.
-- $1 instance, $2 batch, $3 counts
with added as (
  insert into oncegate.weekly_batches as b (instance, batch, added_at)
  values ($1, $2, (floor(date_part('epoch', now()) * 1000::double precision)::bigint))
      on conflict (instance) do update set batch = excluded.batch, added_at = excluded.added_at
   where b.batch < excluded.batch
  returning b.instance
)
insert into oncegate.weekly_counts as c (week, service, route, caller, kind, count)
select -- this_week: the Monday, 00:00 UTC, of the week that has begun. 1 January 1970 was a Thursday.
((floor(date_part('epoch', now()) * 1000::double precision)::bigint) + 259200000) / 604800000 * 604800000 - 259200000,
       n.service, n.route, n.caller, n.kind, n.count
  from added
 cross join json_to_recordset($3::json) as n (service text, route text, caller text, kind text, count bigint)
 order by n.service, n.route, n.caller, n.kind -- instances that add at once must not deadlock
    on conflict (week, service, route, caller, kind) do update set count = c.count + excluded.count;

-- applied_migrations: the migrations that this database has.
select version, name, sha256, oldest_program from oncegate.migrations order by version;

-- await_durability: returns when everything visible before it is as durable as a commit of our own, see durability.rs.
-- A server that waits for no standby shows only what is on its disk, and writes nothing.
select pg_catalog.concat_ws(' ', (date_part('epoch', pg_postmaster_start_time()) * 1000000::double precision)::bigint,
                 replace(current_setting('synchronous_commit'), 'off', 'on'), current_setting('synchronous_standby_names')) as standbys,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint as horizon,
       pg_logical_emit_message(true, 'oncegate', '')
 where current_setting('synchronous_standby_names') <> '' and current_setting('synchronous_commit') <> 'local';

-- await_durability_of: await_durability on the node of a cluster that has the key.
-- $1 id
select pg_catalog.concat_ws(' ', (date_part('epoch', pg_postmaster_start_time()) * 1000000::double precision)::bigint,
                 replace(current_setting('synchronous_commit'), 'off', 'on'), current_setting('synchronous_standby_names')) as standbys,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint as horizon,
       pg_logical_emit_message(true, 'oncegate', '')
  from oncegate.keys as k
 where k.id = $1
   and current_setting('synchronous_standby_names') <> '' and current_setting('synchronous_commit') <> 'local';

-- claim_events: takes events that are due for a publisher, the oldest first; of each key only the oldest that waits.
-- $1 service, $2 sink, $3 limit, $4 lease_ms
with due as materialized (
  select f.seq
    from oncegate.events as f
   where f.service = $1 and f.sink = $2 and f.due_at <= (floor(date_part('epoch', now()) * 1000::double precision)::bigint)
     and not exists (select 1 from oncegate.events as g
                      where g.id = f.id and g.sink = f.sink and g.seq < f.seq and g.due_at is not null and g.service = f.service)
   order by f.due_at, f.seq
   limit $3
     for no key update of f skip locked
)
update oncegate.events as e
   set due_at = (floor(date_part('epoch', now()) * 1000::double precision)::bigint) + $4, tries = e.tries + 1
  from due
 where e.seq = due.seq
returning e.seq, e.at, e.created_at, e.reserved_at, e.settled_at, e.attempt, e.since, e.tries, e.status, e.id, e.token, e.outcome, e.state, e.route, e.key, e.cause, e.fields, e.body;

-- count_events: counts the waiting and the dead events of a sink, up to 10,000 of each, with the oldest that waits, and
-- $1 service, $2 sink
-- why one of them waits and the newest is dead.
select w.waiting, d.dead, w.oldest_at, w.waiting_note,
       (select e.note from oncegate.events as e where e.service = $1 and e.sink = $2 and e.due_at is null
         order by e.seq desc limit 1) as note
  from (select count(*) as waiting, min(f.at) as oldest_at, max(f.note) as waiting_note
          from (select e.at, e.note from oncegate.events as e
                 where e.service = $1 and e.sink = $2 and e.due_at is not null
                 order by e.due_at, e.seq limit 10000) as f) as w,
       (select count(*) as dead
          from (select 1 from oncegate.events as e
                 where e.service = $1 and e.sink = $2 and e.due_at is null limit 10000) as f) as d;

-- count_instances_behind: counts living instances of a service that may still cache a purged response.
-- $1 service, $2 purges
select count(*) as behind
  from oncegate.instances as i
 where replace(' ' || i.services || ' ', ' ' || $1 || ' ', '') <> ' ' || i.services || ' '
   and i.lease_until > (floor(date_part('epoch', now()) * 1000::double precision)::bigint) and i.purges_seen < $2;

-- count_settled_keys: the first rows in the order of ids. Ids are hashes, so this is a fair sample, or all rows.
-- $1 scan_limit, $2 service
with scanned_rows as materialized (
  select k.id, k.service, k.route, k.state from oncegate.keys as k order by k.id limit $1
)
select scan.scanned, scan.last, c.route, c.state, c.rows
  from (select count(*) as scanned, (select s.id from scanned_rows as s order by s.id desc limit 1) as last
          from scanned_rows) as scan
  left join (select s.route, s.state, count(*) as rows
               from scanned_rows as s
              where s.service = $2 and s.state in ('completed', 'expired', 'retryable')
              group by s.route, s.state) as c on true;

-- count_unsettled_keys: keys in flight, queued, unknown or dead, by route; at most so many of each state.
-- $1 service, $2 limit
select u.route, u.state, count(*) as rows
  from (-- A limit for each state: a backlog in one state hides nothing of another.
        select f.* from (select k.route, k.state from oncegate.keys as k
                        where k.state = 'in_flight' and k.service = $1 limit $2) as f
         union all
        select q.* from (select k.route, k.state from oncegate.keys as k
                        where k.state = 'queued' and k.service = $1 limit $2) as q
         union all
        select u.* from (select k.route, k.state from oncegate.keys as k
                        where k.state in ('dead', 'unknown') -- as in the index, which is not used otherwise
                          and k.state = 'unknown' and k.service = $1 limit $2) as u
         union all
        select d.* from (select k.route, k.state from oncegate.keys as k
                        where k.state in ('dead', 'unknown') and k.state = 'dead' and k.service = $1 limit $2) as d) as u
 group by u.route, u.state;

-- crashed_keys: keys in flight whose attempt nobody can be running any more, see mark_crashed.
-- $1 as_of, $2 expiry_ms, $3 limit
select k.id, k.token, k.route, k.attempt, k.instance
  from oncegate.keys as k
  left join oncegate.instances as i on i.id = k.instance
 where k.state = 'in_flight'
   and (i.lease_until is null
        or i.lease_until <= least((floor(date_part('epoch', now()) * 1000::double precision)::bigint), $1)
        or i.renewed_at > greatest((floor(date_part('epoch', now()) * 1000::double precision)::bigint), $1) + $2
        or k.deadline <= least((floor(date_part('epoch', now()) * 1000::double precision)::bigint), $1) - $2)
 limit $3;

-- current_row: the current state of a key that a decision left unchanged, and its last audit entry.
-- $1 id, $2 service
select k.token, k.state, k.deadline, a.actor, a.action, a.after, (floor(date_part('epoch', now()) * 1000::double precision)::bigint) as now
  from (select 1 as one) as none
  left join oncegate.keys as k on k.id = $1 and k.service = $2
  left join (select l.actor, l.action, l.after
               from oncegate.audit as l
              where l.id = $1 and l.service = $2
              order by l.seq desc
              limit 1) as a on true;

-- default_path: the schemas of the search path.
select pg_catalog.current_schemas(false)::text[] as path;

-- delete_events: deletes events that were published, and no other that has got the number of one since a failover.
-- $1 events
delete from oncegate.events as e
 using json_to_recordset($1::json) as n (seq bigint, at bigint)
 where e.seq = n.seq and e.at = n.at;

-- delete_old_batches: forgets the batches of instances that have added none for 30 days.
delete from oncegate.weekly_batches where added_at < (floor(date_part('epoch', now()) * 1000::double precision)::bigint) - 2592000000;

-- delete_old_instances: instances whose lease ended a day ago. An expired lease and a missing one mean the same; until
-- $1 as_of
-- then the row is for people who look.
delete from oncegate.instances as i where i.lease_until < least((floor(date_part('epoch', now()) * 1000::double precision)::bigint), $1) - 86400000;

-- delete_old_weeks: deletes the counts of weeks that ended a year ago.
delete from oncegate.weekly_counts where week < (floor(date_part('epoch', now()) * 1000::double precision)::bigint) - 32054400000;

-- discard_events: deletes dead events of a sink, each with its audit entry: the key's state is what it was.
-- $1 service, $2 sink, $3 actor, $4 types
with discarded as (
  delete from oncegate.events as e
   where e.seq in (select d.seq from oncegate.events as d
                    where d.service = $1 and d.sink = $2 and d.due_at is null
                    order by d.seq
                    limit 10000)
     and e.due_at is null
  returning e.seq, e.id, e.outcome, e.state, e.note
)
insert into oncegate.audit (at, service, actor, action, id, before, after, note)
select (floor(date_part('epoch', now()) * 1000::double precision)::bigint), $1, $3, 'discard event', d.id, coalesce(d.state, 'none'), coalesce(d.state, 'none'),
       coalesce($4::json ->> d.outcome, d.outcome) || ' ' || d.seq::text || ' for ' || $2 || coalesce(': ' || d.note, '')
  from discarded as d
 order by d.seq
returning seq;

-- due_inquiries: unknown keys of a route that are quiet and due for an inquiry, see claim_inquiry.
-- $1 service, $2 route, $3 as_of, $4 quiet_after_ms, $5 limit
select k.id, k.token
  from oncegate.keys as k
 where k.service = $1
   and k.state = 'unknown'
   and k.route = $2
   and coalesce(k.inquire_at, k.settled_at) <= least((floor(date_part('epoch', now()) * 1000::double precision)::bigint), $3)
   and k.deadline + $4 <= least((floor(date_part('epoch', now()) * 1000::double precision)::bigint), $3)
 order by coalesce(k.inquire_at, k.settled_at)
 limit $5;

-- ended_reports: reports "not executed" whose attempt is not in flight any more, see apply_deferred_report.
-- $1 limit
select d.id, d.token
  from oncegate.deferred_reports as d
 -- Not a join: while the table of reports has no statistics, the planner would read all keys for it.
 where (select k.state from oncegate.keys as k where k.id = d.id and k.token = d.token) is distinct from 'in_flight'
 limit $1;

-- expired_keys: records past their TTL, the oldest end first, see reap.
-- $1 settled_since, $2 as_of, $3 limit
select k.id, k.settled_at >= $1 as fits
  from oncegate.keys as k
 where k.expires_at <= least((floor(date_part('epoch', now()) * 1000::double precision)::bigint), $2)
 order by k.expires_at
 limit $3;

-- find: records by id, without the response where it is larger than the limit. A statement of its own: one snapshot
-- cannot show the row that an insert has just lost to.
select k.id, k.attempt, k.token, k.recipe, k.fingerprint, k.state, k.reserved_at, k.deadline, k.settled_at, k.expires_at,
       k.remember_ms, k.accepted_at, k.recovery_point, k.cause, k.inquire_at, k.status,
       -- The lengths are known without reading the values.
       case when coalesce(length(k.fields), 0)::bigint + coalesce(length(k.body), 0) <= $2 then k.fields end as fields,
       case when coalesce(length(k.fields), 0)::bigint + coalesce(length(k.body), 0) <= $2 then k.body end as body,
       coalesce(length(k.fields), 0)::bigint + coalesce(length(k.body), 0) as bytes,
       -- Whether the row is as durable as a commit of our own, see durability.rs: null where commits wait for no
       -- standby.
       case when current_setting('synchronous_standby_names') <> '' and current_setting('synchronous_commit') <> 'local'
            then pg_catalog.concat_ws(' ', (date_part('epoch', pg_postmaster_start_time()) * 1000000::double precision)::bigint,
                           replace(current_setting('synchronous_commit'), 'off', 'on'), current_setting('synchronous_standby_names'))
       end as standbys,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint as horizon,
       k.xmin::text::bigint as writer
  from oncegate.keys as k
 where k.id = any ($1);

-- find_parts: the bits of a record's parts, for a request that was refused because of another fingerprint. A record that
-- $1 id, $2 fingerprint
-- came since is another one.
select k.parts
  from oncegate.keys as k
 where k.id = $1
   and k.fingerprint = $2
   and k.parts is not null;

-- find_reservation: the keys of reservations, with the tokens of their newest attempts.
select k.id, k.service, k.token, k.route, k.state, k.settled_at from oncegate.keys as k where k.id = any ($1);

-- find_salt: a service's salt, whichever instance drew it, and whether the row is as durable as a commit of our own,
-- $1 service
-- see durability.rs.
select s.value,
       case when current_setting('synchronous_standby_names') <> '' and current_setting('synchronous_commit') <> 'local'
            then pg_catalog.concat_ws(' ', (date_part('epoch', pg_postmaster_start_time()) * 1000000::double precision)::bigint,
                           replace(current_setting('synchronous_commit'), 'off', 'on'), current_setting('synchronous_standby_names'))
       end as standbys,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint as horizon,
       s.xmin::text::bigint as writer
  from oncegate.salts as s
 where s.service = $1;

-- fix_search_path: lets names mean the server's own operators and functions for the rest of the session, if this
-- process serves it. Each name says its schema: the session still has the path that the database's owner has set.
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false) as search_path
 where pg_catalog.pg_backend_pid() operator(pg_catalog.=) $1;

-- fold_callers: adds the callers of a route and week past those with the highest counts to the others.
-- $1 service, $2 route, $3 limit
with ranked as (
  select c.week, c.service, c.route, c.caller,
         row_number() over (partition by c.week, c.service, c.route order by sum(c.count) desc, c.caller) as place
    from oncegate.weekly_counts as c
   where c.week in (-- this_week: the Monday, 00:00 UTC, of the week that has begun. 1 January 1970 was a Thursday.
   ((floor(date_part('epoch', now()) * 1000::double precision)::bigint) + 259200000) / 604800000 * 604800000 - 259200000, -- this_week: the Monday, 00:00 UTC, of the week that has begun. 1 January 1970 was a Thursday.
   ((floor(date_part('epoch', now()) * 1000::double precision)::bigint) + 259200000) / 604800000 * 604800000 - 259200000 - 604800000)
     and c.service = $1
     and c.route = $2
     and length(c.caller) = 16
   group by c.week, c.service, c.route, c.caller
),
folded as (
  delete from oncegate.weekly_counts as c
   using ranked as r
   where r.place > $3
     and c.week = r.week and c.service = r.service and c.route = r.route and c.caller = r.caller
  returning c.week, c.service, c.route, c.kind, c.count
)
insert into oncegate.weekly_counts as c (week, service, route, caller, kind, count)
select f.week, f.service, f.route, 'others', f.kind, cast(sum(f.count) as bigint)
  from folded as f
 group by f.week, f.service, f.route, f.kind
 order by f.week, f.service, f.route, f.kind
    on conflict (week, service, route, caller, kind) do update set count = c.count + excluded.count;

-- forget_caller: takes a caller's name from its counts.
-- $1 replacement, $2 service, $3 caller
update oncegate.weekly_counts
   set caller = $1
 where service = $2
   and caller = $3;

-- functions_there: which of these functions the schema has.
select distinct p.proname::text as name
  from pg_catalog.pg_proc as p
  join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
 where n.nspname = 'oncegate' and p.proname = any ($1::text[]::name[]);

-- has_citus: whether the database has the extension of a cluster.
select exists (select from pg_catalog.pg_extension as e where e.extname = 'citus') as found;

-- has_event_triggers: tells whether changes of keys write events.
select exists (select from pg_catalog.pg_trigger where tgrelid = 'oncegate.keys'::regclass::oid and tgname = 'keys_tell_their_state');

-- has_keys: a row, if the store has keys.
select k.id from oncegate.keys as k limit 1;

-- holder: the holder that a key counts for.
-- $1 id
select k.holder from oncegate.keys as k where k.id = $1;

-- holder_keys: the keys of a caller that count for a holder.
-- $1 holder, $2 scope
select k.id
  from oncegate.keys as k
 -- Not `=`: where there are few holders, the planner would take each for a large part of the table, and read it whole.
 where k.holder between $1 and $1 and k.scope = $2
 order by k.id;

-- index_statistics: the bytes of each index of the schema, and how often it was used, for a report.
select s.relname, s.indexrelname, pg_catalog.pg_relation_size(s.indexrelid) as bytes, s.idx_scan
  from pg_catalog.pg_stat_all_indexes as s
 where s.schemaname = 'oncegate'
 order by s.relname, s.indexrelname;

-- insert_salt: stores a service's salt, unless it has one.
-- $1 service, $2 to
insert into oncegate.salts (service, value) values ($1, $2) on conflict (service) do nothing returning service;

-- list_audit_entries: entries of the audit log, the latest first.
-- $1 service, $2 id, $3 before, $4 limit
select a.seq, a.at, a.actor, a.action, a.id, a.before, a.after, a.note
  from oncegate.audit as a
 where a.service = $1
   and ($2 is null or a.id = $2)
   and ($3 is null or a.seq < $3)
 order by a.seq desc
 limit $4;

-- list_callers_of_week: the counts of a service's week by route, caller and kind, the callers with most of them first.
-- $1 week, $2 service
-- Without a week, of the one that has begun.
select c.route, c.caller, c.kind, c.count
  from oncegate.weekly_counts as c
 where c.week = coalesce(
         $1,
         -- this_week: the Monday, 00:00 UTC, of the week that has begun. 1 January 1970 was a Thursday.
         ((floor(date_part('epoch', now()) * 1000::double precision)::bigint) + 259200000) / 604800000 * 604800000 - 259200000)
   and c.service = $2
 order by sum(c.count) over (partition by c.route, c.caller) desc, c.route, c.caller, c.kind
 limit 10000;

-- list_in_flight: keys in flight under an instance's name, which the instance compares with its running attempts.
-- $1 instance, $2 older_than_ms
select k.id, k.token, k.route
  from oncegate.keys as k
 where k.state = 'in_flight'
   and k.instance = $1
   -- From later than now: reserved before the clock was set back, nobody knows how long ago.
   and (k.reserved_at <= (floor(date_part('epoch', now()) * 1000::double precision)::bigint) - $2 or k.reserved_at > (floor(date_part('epoch', now()) * 1000::double precision)::bigint));

-- list_instances: the instances of a service, the one that has renewed its lease last before the others.
-- $1 service, $2 limit
select i.id, i.started_at, i.renewed_at, i.lease_until, (floor(date_part('epoch', now()) * 1000::double precision)::bigint) as now
  from oncegate.instances as i
 where replace(' ' || i.services || ' ', ' ' || $1 || ' ', '') <> ' ' || i.services || ' '
 order by i.renewed_at desc, i.id
 limit $2;

-- list_keys: the keys that fit the filter among the next rows, the newest first.
-- $1 created_from, $2 at, $3 from, $4 scan_limit, $5 service, $6 state, $7 scope_low, $8 scope_high, $9 route, $10 key, $11 path, $12 path_length, $13 people_path, $14 older_than_ms, $15 created_until, $16 limit
with settled_rows as materialized (
  -- Rows of all services: a limit on rows that fit would not limit the rows that are read.
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.path, k.created_at, k.settled_at
    from oncegate.keys as k
   where k.settled_at is not null
     and k.created_at between $1 and $2
     and (k.created_at < $2 or k.id < $3)
   order by k.created_at desc, k.id desc
   limit $4
),
scanned_rows as materialized (
  select * from settled_rows
  union all
  -- The index of newest keys has none in flight. They are few, and are sorted here.
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.path, k.created_at, k.settled_at
    from oncegate.keys as k
   where k.state = 'in_flight'
     and k.created_at between $1 and $2
     and (k.created_at < $2 or k.id < $3)
   order by created_at desc, id desc
   limit $4
),
-- newest_page: a page of the keys that fit the filter among scanned rows, the newest first, and where the scan ended.
fitting as materialized (
  select id, created_at
    from scanned_rows
   where
     -- fits_filter: whether a key fits an operator's filter.
     service = $5
     and ($6 is null or state = $6)
     and ($7 is null or scope between $7 and $8)
     and ($9 is null or route = $9)
     and ($10 is null or key = $10)
     -- The target, or the path for people.
     and ($11 is null or substr(path, 1, $12) = $11 or substr(path, 1, $12 + 1) = $13)
     and ($14 is null or coalesce(settled_at, created_at) <= (floor(date_part('epoch', now()) * 1000::double precision)::bigint) - $14)
     and created_at >= $1
     and created_at < $15
   order by created_at desc, id desc
   limit $16
)
select scan.scanned, scan.last_at, scan.last, page.*
  from (select count(*) as scanned,
               (select s.created_at from scanned_rows as s order by s.created_at, s.id limit 1) as last_at,
               (select s.id from scanned_rows as s order by s.created_at, s.id limit 1) as last
          from scanned_rows) as scan
  left join (select
                    -- key_columns: the columns of a key that operators see.
                    k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path, k.created_at, k.reserved_at,
                    k.deadline, k.settled_at, k.expires_at, k.remember_ms, k.due_at, k.status,
                    coalesce(k.state = 'completed' and k.hand_token = k.token, false) as by_hand,
                    length(k.body) as body_bytes, coalesce(k.inquiries, 0) as inquiries, coalesce(k.absences, 0) as absences, k.inquire_at,
                    k.accepted_at, k.cause, k.trace_id, k.client_address, k.earlier, (floor(date_part('epoch', now()) * 1000::double precision)::bigint) as now
               from fitting
               join oncegate.keys as k on k.id = fitting.id) as page on true
 order by page.created_at desc, page.id desc;

-- list_keys_by_age: dead or unknown keys that fit the filter, the oldest first.
-- $1 service, $2 state, $3 at, $4 from, $5 scope_low, $6 scope_high, $7 route, $8 key, $9 path, $10 path_length, $11 people_path, $12 older_than_ms, $13 created_from, $14 created_until, $15 limit
select
  -- key_columns: the columns of a key that operators see.
  k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path, k.created_at, k.reserved_at,
  k.deadline, k.settled_at, k.expires_at, k.remember_ms, k.due_at, k.status,
  coalesce(k.state = 'completed' and k.hand_token = k.token, false) as by_hand,
  length(k.body) as body_bytes, coalesce(k.inquiries, 0) as inquiries, coalesce(k.absences, 0) as absences, k.inquire_at,
  k.accepted_at, k.cause, k.trace_id, k.client_address, k.earlier, (floor(date_part('epoch', now()) * 1000::double precision)::bigint) as now
  from oncegate.keys as k
 where k.service = $1
   and k.state in ('dead', 'unknown')
   and k.state = $2
   and (k.settled_at, k.id) >= ($3, $4)
   and
     -- fits_filter: whether a key fits an operator's filter.
     service = $1
     and ($2 is null or state = $2)
     and ($5 is null or scope between $5 and $6)
     and ($7 is null or route = $7)
     and ($8 is null or key = $8)
     -- The target, or the path for people.
     and ($9 is null or substr(path, 1, $10) = $9 or substr(path, 1, $10 + 1) = $11)
     and ($12 is null or coalesce(settled_at, created_at) <= (floor(date_part('epoch', now()) * 1000::double precision)::bigint) - $12)
     and created_at >= $13
     and created_at < $14
 order by k.settled_at, k.id
 limit $15;

-- list_keys_by_id: the keys whose ids begin so. Ids are hashes: few do.
-- $1 low, $2 high, $3 service, $4 limit
select
  -- key_columns: the columns of a key that operators see.
  k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path, k.created_at, k.reserved_at,
  k.deadline, k.settled_at, k.expires_at, k.remember_ms, k.due_at, k.status,
  coalesce(k.state = 'completed' and k.hand_token = k.token, false) as by_hand,
  length(k.body) as body_bytes, coalesce(k.inquiries, 0) as inquiries, coalesce(k.absences, 0) as absences, k.inquire_at,
  k.accepted_at, k.cause, k.trace_id, k.client_address, k.earlier, (floor(date_part('epoch', now()) * 1000::double precision)::bigint) as now
  from oncegate.keys as k
 where k.id between $1 and $2
   and k.service = $3
 order by k.id
 limit $4;

-- list_keys_by_lookup: the keys that fit the filter among the next ones with a value, the newest first.
-- $1 lookup, $2 created_from, $3 at, $4 from, $5 scan_limit, $6 service, $7 state, $8 scope_low, $9 scope_high, $10 route, $11 key, $12 path, $13 path_length, $14 people_path, $15 older_than_ms, $16 created_until, $17 limit
-- Each page reads all keys with the value: most values have few, and the time limit of a call bounds the rest.
with found as materialized (
  select k.id
    from oncegate.keys as k
   where k.lookups is not null
     and oncegate.split_lookups(k.lookups) operator(pg_catalog.@>) array[$1]
),
scanned_rows as materialized (
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.path, k.created_at, k.settled_at
    from found
    join oncegate.keys as k on k.id = found.id
   where k.created_at between $2 and $3
     and (k.created_at < $3 or k.id < $4)
   order by k.created_at desc, k.id desc
   limit $5
),
-- newest_page: a page of the keys that fit the filter among scanned rows, the newest first, and where the scan ended.
fitting as materialized (
  select id, created_at
    from scanned_rows
   where
     -- fits_filter: whether a key fits an operator's filter.
     service = $6
     and ($7 is null or state = $7)
     and ($8 is null or scope between $8 and $9)
     and ($10 is null or route = $10)
     and ($11 is null or key = $11)
     -- The target, or the path for people.
     and ($12 is null or substr(path, 1, $13) = $12 or substr(path, 1, $13 + 1) = $14)
     and ($15 is null or coalesce(settled_at, created_at) <= (floor(date_part('epoch', now()) * 1000::double precision)::bigint) - $15)
     and created_at >= $2
     and created_at < $16
   order by created_at desc, id desc
   limit $17
)
select scan.scanned, scan.last_at, scan.last, page.*
  from (select count(*) as scanned,
               (select s.created_at from scanned_rows as s order by s.created_at, s.id limit 1) as last_at,
               (select s.id from scanned_rows as s order by s.created_at, s.id limit 1) as last
          from scanned_rows) as scan
  left join (select
                    -- key_columns: the columns of a key that operators see.
                    k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path, k.created_at, k.reserved_at,
                    k.deadline, k.settled_at, k.expires_at, k.remember_ms, k.due_at, k.status,
                    coalesce(k.state = 'completed' and k.hand_token = k.token, false) as by_hand,
                    length(k.body) as body_bytes, coalesce(k.inquiries, 0) as inquiries, coalesce(k.absences, 0) as absences, k.inquire_at,
                    k.accepted_at, k.cause, k.trace_id, k.client_address, k.earlier, (floor(date_part('epoch', now()) * 1000::double precision)::bigint) as now
               from fitting
               join oncegate.keys as k on k.id = fitting.id) as page on true
 order by page.created_at desc, page.id desc;

-- list_keys_in_flight: keys in flight that fit the filter; there are few.
-- $1 from, $2 service, $3 state, $4 scope_low, $5 scope_high, $6 route, $7 key, $8 path, $9 path_length, $10 people_path, $11 older_than_ms, $12 created_from, $13 created_until, $14 limit
select
  -- key_columns: the columns of a key that operators see.
  k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path, k.created_at, k.reserved_at,
  k.deadline, k.settled_at, k.expires_at, k.remember_ms, k.due_at, k.status,
  coalesce(k.state = 'completed' and k.hand_token = k.token, false) as by_hand,
  length(k.body) as body_bytes, coalesce(k.inquiries, 0) as inquiries, coalesce(k.absences, 0) as absences, k.inquire_at,
  k.accepted_at, k.cause, k.trace_id, k.client_address, k.earlier, (floor(date_part('epoch', now()) * 1000::double precision)::bigint) as now
  from oncegate.keys as k
 where k.state = 'in_flight'
   and k.id >= $1
   and
     -- fits_filter: whether a key fits an operator's filter.
     service = $2
     and ($3 is null or state = $3)
     and ($4 is null or scope between $4 and $5)
     and ($6 is null or route = $6)
     and ($7 is null or key = $7)
     -- The target, or the path for people.
     and ($8 is null or substr(path, 1, $9) = $8 or substr(path, 1, $9 + 1) = $10)
     and ($11 is null or coalesce(settled_at, created_at) <= (floor(date_part('epoch', now()) * 1000::double precision)::bigint) - $11)
     and created_at >= $12
     and created_at < $13
 order by k.id
 limit $14;

-- list_route_identities: how the routes of each service find their keys, as it was stored last.
select r.service, r.generation, r.finds from oncegate.route_identities as r order by r.service;

-- list_settled_keys: keys after this id. Reads at most so many rows, whether they were settled lately or not.
-- $1 service, $2 since_ms, $3 after, $4 limit
select k.id, k.token, k.scope, k.key, k.route, k.path, k.state, k.status,
       k.service = $1
         and k.state in ('completed', 'dead', 'retryable', 'unknown')
         and coalesce(k.settled_at, 0) >= (floor(date_part('epoch', now()) * 1000::double precision)::bigint) - $2 as fits
  from oncegate.keys as k
 where k.id > $3
 order by k.id
 limit $4;

-- list_weeks: the counts of a service's last 13 weeks by route and kind, the latest first.
-- $1 service
select c.week, c.route, c.kind, cast(sum(c.count) as bigint) as count
  from oncegate.weekly_counts as c
 where c.week > (floor(date_part('epoch', now()) * 1000::double precision)::bigint) - 7862400000
   and c.service = $1
 group by c.week, c.route, c.kind
 order by c.week desc, c.route, c.kind
 limit 10000;

-- moment: the store's time. Asks for a lock on nothing, which a server that takes no writes refuses (25006): it would
-- show old records.
with writable as materialized (select from oncegate.instances where false for update)
select floor(date_part('epoch', clock_timestamp()) * 1000::double precision)::bigint as now
 where not exists (select from writable);

-- nodes: the number of nodes that hold keys; 0 where the keys are not distributed.
select pg_catalog.count(distinct (s.nodename, s.nodeport)) as nodes
  from citus_shards as s
 where s.table_name::oid = 'oncegate.keys'::regclass::oid and s.citus_table_type = 'distributed';

-- nodes_not_durable: the number of nodes whose commits are not durable.
select count(*) as nodes from run_command_on_all_nodes('show synchronous_commit') as r where r.result = 'off';

-- open_schemas: the schemas of a search path, and Oncegate's own, in which other roles may create something, with these
-- roles. Superusers, this role, and the owner of Oncegate's schema may do everything anyway.
select n.nspname::text as schema, pg_catalog.quote_ident(current_user::text) as role,
       pg_catalog.string_agg(distinct case when a.grantee = 0::oid then 'everybody' else r.rolname::text end, ', '::text) as roles
  from pg_catalog.pg_namespace as n
 cross join lateral pg_catalog.aclexplode(coalesce(n.nspacl, pg_catalog.acldefault('n'::"char", n.nspowner))) as a
  left join pg_catalog.pg_roles as g on g.oid = a.grantee
  left join pg_catalog.pg_database as d on d.datname = current_database() and g.rolname = 'pg_database_owner'
  left join pg_catalog.pg_roles as r on r.oid = coalesce(d.datdba, a.grantee)
 where (n.nspname::text = any ($1) or n.nspname = 'oncegate')
   and n.nspname <> 'pg_catalog'
   and a.privilege_type = 'CREATE'
   and (a.grantee = 0::oid
        or not (r.rolsuper
                or r.rolname = current_user
                or r.oid = (select o.nspowner from pg_catalog.pg_namespace as o where o.nspname = 'oncegate')))
 group by n.nspname
 order by n.nspname;

-- postpone_event: lets an event be tried again later, or makes it dead where there is no later. A later claim stays.
-- $1 retry_ms, $2 note, $3 seq, $4 at, $5 tries
update oncegate.events set due_at = (floor(date_part('epoch', now()) * 1000::double precision)::bigint) + $1, note = $2 where seq = $3 and at = $4 and tries = $5;

-- purge_count: how often keys were purged.
select c.value as purges from oncegate.counters as c where c.name = 'purges';

-- queued_deliveries: queued keys of a route that are due, the longest due first, see start_delivery.
-- $1 service, $2 route, $3 as_of, $4 limit
select k.id, k.token, k.state, k.due_at as since
  from oncegate.keys as k
 where k.service = $1
   and k.state = 'queued'
   and k.route = $2
   and k.due_at <= least((floor(date_part('epoch', now()) * 1000::double precision)::bigint), $3)
 order by k.due_at
 limit $4;

-- release_lease: gives an instance's lease back.
-- $1 instance
delete from oncegate.instances as i where i.id = $1;

-- remember_route_identities: stores how a service's routes find their keys, if what is stored is still what was read,
-- $1 service, $2 finds, $3 generation
-- or if nothing was and nothing is.
insert into oncegate.route_identities as r (service, generation, finds)
select $1, 1, $2
 where $3 is null
    or exists (select 1 from oncegate.route_identities as o where o.service = $1 and o.generation = $3)
    on conflict (service) do update
   set generation = r.generation + case when r.finds = excluded.finds then 0 else 1 end, finds = excluded.finds
 where r.generation = $3
returning generation;

-- replace_salt: stores a service's salt in another form, unless another instance has just done so.
-- $1 to, $2 service, $3 from
update oncegate.salts as s set value = $1 where s.service = $2 and s.value = $3 returning s.service;

-- requeue_events: lets dead events of a sink be tried again from now on.
-- $1 service, $2 sink
update oncegate.events
   set due_at = (floor(date_part('epoch', now()) * 1000::double precision)::bigint), since = (floor(date_part('epoch', now()) * 1000::double precision)::bigint), note = null
 where seq in (select e.seq from oncegate.events as e
                where e.service = $1 and e.sink = $2 and e.due_at is null
                order by e.seq
                limit 10000)
returning seq;

-- server_properties: why this server cannot have the store, and whether the schema exists.
select case
         -- What is used is older; earlier servers get no fixes any more.
         when current_setting('server_version_num')::integer < 130000 then 'PostgreSQL 13 or newer is needed'
         when pg_is_in_recovery() then 'the server is a standby, which may return old records'
         when current_setting('default_transaction_isolation') <> 'read committed'
           then 'the role''s default_transaction_isolation is ' || current_setting('default_transaction_isolation')
                || '; it must be read committed'
         when current_setting('client_min_messages') = 'error'
           then 'the role''s client_min_messages is error; it must be warning or lower, as only a warning says that a commit is '
                'not durable'
       end as refusal,
       -- Not to_regclass(): it may answer from the session's cache and miss a commit of another session.
       exists (select from pg_catalog.pg_tables where schemaname = 'oncegate' and tablename = 'migrations') as migrated;

-- server_role: whether this server takes writes, and what tells it from the other servers of the URL.
select not pg_is_in_recovery() and current_setting('transaction_read_only') = 'off' as takes_writes,
       -- The first eight digits are the timeline. A standby writes no log, and refuses the question.
       case when not pg_is_in_recovery() then pg_walfile_name(pg_current_wal_lsn()) end as wal_file,
       (select system_identifier from pg_control_system()) as system,
       -- One server under two names, or behind two poolers, has started once.
       (date_part('epoch', pg_postmaster_start_time()) * 1000000::double precision)::bigint as started_at_us;

-- server_settings: the settings of the server that decide about durability and load, for a report.
select s.name, s.setting, s.unit
  from pg_catalog.pg_settings as s
 where s.name in ('autovacuum', 'fsync', 'max_connections', 'server_version', 'shared_buffers', 'synchronous_commit')
 order by s.name;

-- store_event_routes: stores which routes of a service tell which sinks about their keys, in place of what was stored,
-- $1 routes, $2 keeps_stored, $3 service
-- or beside it.
with given as (
  select n.route, n.sink, n.outcomes, n.body
    from json_to_recordset($1::json) as n (route text, sink text, outcomes text[], body boolean)
),
gone as (
  delete from oncegate.event_routes as t
   where not $2
     and t.service = $3
     and not exists (select from given as g where g.route = t.route and g.sink = t.sink)
)
insert into oncegate.event_routes as t (service, route, sink, outcomes, body)
select $3, g.route, g.sink, g.outcomes, g.body
  from given as g
 order by g.route, g.sink -- proxies that start together must not deadlock
    on conflict (service, route, sink) do update set outcomes = excluded.outcomes, body = excluded.body
     where not $2
       and (t.outcomes::text, t.body) is distinct from (excluded.outcomes::text, excluded.body);

-- store_identity: the properties that tell this store from every other one.
-- A copy by a dump has other numbers in one of the first two columns. A physical standby has the same ones.
select (select oid::bigint from pg_catalog.pg_database where datname = current_database()) as database,
       'oncegate.migrations'::regclass::oid::bigint as relation,
       (select (date_part('epoch', min(applied_at)) * 1000000::double precision)::bigint from oncegate.migrations) as created_at_us;

-- store_route_retention: stores how long each route of a service keeps what, for the functions that services call.
-- $1 service, $2 encrypted, $3 routes
insert into oncegate.route_retention as t (service, route, ttl_ms, remember_ms, body_max, drop_headers, encrypted)
select $1, n.route, n.ttl_ms, n.remember_ms, n.body_max, n.drop_headers, $2
  from json_to_recordset($3::json)
       as n (route text, ttl_ms bigint, remember_ms bigint, body_max bigint, drop_headers text[])
 order by n.route -- proxies that start together must not deadlock
    on conflict (service, route) do update
       set ttl_ms = excluded.ttl_ms, remember_ms = excluded.remember_ms, body_max = excluded.body_max,
           drop_headers = excluded.drop_headers, encrypted = excluded.encrypted
     where (t.ttl_ms, t.remember_ms, t.body_max, t.drop_headers::text, t.encrypted)
           is distinct from
           (excluded.ttl_ms, excluded.remember_ms, excluded.body_max, excluded.drop_headers::text, excluded.encrypted);

-- table_statistics: the bytes of each table of the schema, with its rows and its last vacuum, for a report.
select s.relname, pg_catalog.pg_table_size(s.relid) as bytes, s.n_live_tup, s.n_dead_tup, s.last_autovacuum
  from pg_catalog.pg_stat_all_tables as s
 where s.schemaname = 'oncegate'
 order by s.relname;

-- unknown_deliveries: keys of a route, accepted or with a kept request, whose last attempt has an unknown outcome and
-- $1 service, $2 route, $3 as_of, $4 quiet_after_ms, $5 limit
-- that are due and quiet, see start_delivery.
select k.id, k.token, k.state, coalesce(k.due_at, k.settled_at) as since
  from oncegate.keys as k
 where k.service = $1
   and k.state = 'unknown'
   and k.route = $2
   and (k.accepted_at is not null or k.due_at is not null)
   and coalesce(k.due_at, k.settled_at) <= least((floor(date_part('epoch', now()) * 1000::double precision)::bigint), $3)
   -- The column stands alone, so that the index is searched for it. Without a time of quiet the route accepts any.
   and k.deadline <= coalesce(least((floor(date_part('epoch', now()) * 1000::double precision)::bigint), $3) - $4, 9223372036854775807)
 order by coalesce(k.due_at, k.settled_at)
 limit $5;

-- event_triggers: lets each change of a key that is told about write its events in its own transaction.
--
-- The triggers write facts. The program names an event's type by its outcome, and says which outcomes each place is
-- told: crates/store/src/events.rs. They are filtered here: a row that nobody wants would cost as much as one that is
-- published, and would wait for its deletion as long as the receiver is away.
set local search_path = pg_catalog, pg_temp;
create or replace function oncegate.add_events() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
  its oncegate.keys;
  state_before text := 'none';
  state_after text := 'none';
  lines bytea;
  outcome text;
  moment constant bigint := floor(date_part('epoch', clock_timestamp()) * 1000);
begin
  if tg_op <> 'INSERT' then
    its := old;
    state_before := old.state;
  end if;
  if tg_op <> 'DELETE' then
    its := new;
    state_after := new.state;
  end if;
  -- The state before is that of the same request: one that is accepted over a key says nothing of the attempt before
  -- it.
  if tg_op = 'UPDATE' and old.accepted_at is distinct from new.accepted_at then
    state_before := 'none';
  end if;
  outcome := state_after || ' after ' || state_before;
  if state_after = 'completed' then
    -- A gRPC call is answered with 200. Its own status is a line of the fields or of the trailers.
    lines := convert_to(E'\r\n', 'UTF8') || its.fields;
    outcome := 'completed ' || (its.status / 100) || 'xx'
               || case when position(convert_to(E'\r\ngrpc-status: ', 'UTF8') in lines) = 0 then ''
                       when position(convert_to(E'\r\ngrpc-status: 0\r\n', 'UTF8') in lines) > 0 then ' grpc-status 0'
                       else ' grpc-status not 0' end;
  end if;
  insert into oncegate.events (at, created_at, reserved_at, settled_at, since, due_at, attempt, status, id, token, outcome,
                               state, service, sink, route, key, cause, fields, body)
  select moment, its.created_at, its.reserved_at, its.settled_at, moment, moment, its.attempt,
         case when state_after = 'completed' then its.status end, its.id, its.token, outcome,
         nullif(state_after, 'none'), its.service, r.sink, its.route, nullif(its.key, ''::bytea),
         case when state_after = 'unknown' then its.cause end,
         case when r.body and state_after = 'completed' then its.fields end,
         case when r.body and state_after = 'completed' then its.body end
    from oncegate.event_routes as r
   where r.service = its.service and r.route = its.route and outcome = any (r.outcomes);
  return null;
end
$function$;
-- Nothing is told of an attempt that begins or is released, of an acceptance, and of a TTL that ends. These changes cost
-- no call, which takes as long as the update of the row: 43 µs; 98 with the call, 164 with an event too (PostgreSQL 15,
-- median of three rounds of 20,000 on a busy machine). Another token in the same state is an attempt whose beginning the
-- store has lost.
create trigger keys_tell_their_birth after insert on oncegate.keys
  for each row when (new.state not in ('in_flight', 'queued'))
  execute function oncegate.add_events();
create trigger keys_tell_their_state after update of state on oncegate.keys
  for each row when ((old.state <> new.state or old.token <> new.token) and new.state not in ('expired', 'in_flight')
                     and (old.state <> 'in_flight' or new.state not in ('queued', 'retryable')))
  execute function oncegate.add_events();
create trigger keys_tell_their_end after delete on oncegate.keys
  for each row when (old.expires_at is null and old.state <> 'in_flight')
  execute function oncegate.add_events();
