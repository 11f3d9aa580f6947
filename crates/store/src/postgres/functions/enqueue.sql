-- enqueue: accepts a key for delivery, with its request. A key with a record is accepted if its record is still as it
-- was seen; past its TTL a new life begins.
create function oncegate.enqueue(
  {reservation parameters}, _secret text, _sealed bytea,
  _seen_token bytea, _seen_state text, _past_ttl_at bigint, _redelivered boolean
) returns boolean
declare
  moment constant bigint := oncegate.begin_write('20ms');
  attempts_before integer := 0;
begin
  if _seen_token is null then
    insert into oncegate.keys
           ({reservation names}, state, attempt, created_at, reserved_at, deadline, settled_at, accepted_at, due_at)
    values ({reservation values}, 'queued', 0, moment, moment, moment, moment, moment, moment)
        on conflict (id) do nothing;
  else
    update oncegate.keys as k
       set state = 'queued', attempt = case when _past_ttl_at is null then k.attempt else 0 end,
           deadline = moment, settled_at = moment, accepted_at = moment, due_at = moment,
           {taken_over}
     where
       {may_take_over}
    returning k.attempt into attempts_before;
  end if;
  if not found then
    return false;
  end if;
  insert into oncegate.outbox as o (id, since, attempts_before, secret, sealed)
  values (_id, moment, attempts_before, _secret, _sealed)
      -- A request that is left over from an earlier life of the key.
      on conflict (id) do update
     set since = excluded.since, attempts_before = excluded.attempts_before, secret = excluded.secret,
         sealed = excluded.sealed;
  return true;
end
