-- enqueue: reserves or accepts a key, with its request: an attempt begins where it has a time limit, and else the key
-- waits for its delivery. A key with a record is taken if its record is still as it was seen; past its TTL a new life
-- begins.
create function oncegate.enqueue(
  {reservation parameters}, _time_limit_ms bigint, _secret text, _sealed bytea,
  _seen_token bytea, _seen_state text, _past_ttl_at bigint, _redelivered boolean,
  out done boolean, out attempt integer, out recovery_point text
)
declare
  moment constant bigint := oncegate.begin_write('20ms');
  starts constant boolean := _time_limit_ms is not null;
  first constant integer := case when starts then 1 else 0 end;
begin
  if _seen_token is null then
    insert into oncegate.keys as k
           ({reservation names}, state, attempt, created_at, reserved_at, deadline, settled_at, accepted_at, due_at)
    values ({reservation values}, case when starts then 'in_flight' else 'queued' end, first, moment, moment,
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
           {taken_over}
     where
       {may_take_over}
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
