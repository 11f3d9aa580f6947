-- start_delivery: starts the next attempt of a key that is still as it was seen, with its kept request, or marks an
-- accepted one dead where its policy gives it up; `note` says why then. Without a token no attempt begins. A key that was
-- not accepted is repeated while its window is open, and gets no other attempt: see
-- docs/decisions/0031-repeat-on-the-vendors-word.md.
create function oncegate.start_delivery(
  _id bytea, _seen_token bytea, _seen_state text, _token bytea, _instance bigint, _time_limit_ms bigint,
  _max_attempts integer, _give_up_after_ms bigint, _quiet_after_ms bigint, _repeat_within_ms bigint, _as_of bigint,
  out done boolean, out note text, out scope bytea, out space bytea, out key bytea, out path bytea, out recipe text,
  out fingerprint bytea, out parts bytea, out attempt integer, out recovery_point text, out accepted_at bigint, out spent integer,
  out give_up_in_ms bigint, out secret text, out sealed bytea
)
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
    done := case when note is null then false else oncegate.{function give_up}(_id, _seen_token, _seen_state, note) end;
    return;
  end if;
  update oncegate.keys as k
     set state = 'in_flight', attempt = k.attempt + 1, token = _token, instance = _instance,
         reserved_at = moment, deadline = moment + _time_limit_ms,
         settled_at = null, due_at = case when k.accepted_at is null then least(k.due_at, moment - 1) end,
         {outcome resets}, inquiries = null, absences = null, inquire_at = null, expires_at = null,
         earlier = {with_attempt}
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
