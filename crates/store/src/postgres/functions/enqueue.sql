-- enqueue: accepts a key for delivery, with its request. A key with a record is accepted if its record is still as it was
-- seen; past its TTL a new life begins.
create function oncegate.enqueue(
  {reservation parameters}, _secret text, _sealed bytea,
  _seen_token bytea, _seen_state text, _past_ttl_at bigint
) returns boolean
declare
  moment constant bigint := oncegate.begin_write('20ms');
  past_ttl_at constant bigint := least(moment, _past_ttl_at);
  begins_anew constant boolean := _past_ttl_at is not null;
  attempts_before integer := 0;
begin
  if _seen_token is null then
    insert into oncegate.keys
           ({reservation names}, state, attempt, created_at, reserved_at, deadline, settled_at, accepted_at, due_at)
    values ({reservation values}, 'queued', 0, moment, moment, moment, moment, moment, moment)
        on conflict (id) do nothing;
  else
    update oncegate.keys as k
       set {attempt assignments}, state = 'queued',
           attempt = case when begins_anew then 0 else k.attempt end,
           created_at = case when begins_anew then moment else k.created_at end,
           reserved_at = moment, deadline = moment, settled_at = moment, accepted_at = moment, due_at = moment,
           {outcome resets},
           recovery_point = case when not begins_anew then k.recovery_point end,
           earlier = case when not begins_anew
                          then oncegate.with_attempt(k.earlier, k.attempt, k.instance, k.reserved_at, k.settled_at,
                                                     k.accepted_at, k.state, k.cause) end
     where k.id = _id
       and k.token = _seen_token
       and k.state = _seen_state
       -- As in take_over.
       and k.state not in ('dead', 'in_flight', 'queued')
       and (k.state not in ('completed', 'expired') or begins_anew)
       and (not begins_anew or k.expires_at + coalesce(k.remember_ms, 0) <= past_ttl_at)
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
