-- event_triggers: lets each change of a key that is told about write its events in its own transaction, as in
-- PostgreSQL. They are due at once by any clock: a simulation has its own.
drop view if exists key_changes;
-- What the triggers of keys have in common: they insert a change, and this one the events.
create view key_changes as select id, state as before, state as after from keys;
create trigger key_changes_are_told instead of insert on key_changes
begin
  insert into events (at, created_at, reserved_at, settled_at, since, due_at, attempt, status, id, token, outcome, state,
                      service, sink, route, key, cause, fields, body)
  select k.at, k.created_at, k.reserved_at, k.settled_at, k.at, 0, k.attempt, iif(new.after = 'completed', k.status, null),
         k.id, k.token, k.outcome, nullif(new.after, 'none'), k.service, r.sink, k.route, nullif(k.key, x''),
         iif(new.after = 'unknown', k.cause, null), iif(r.body and new.after = 'completed', k.fields, null),
         iif(r.body and new.after = 'completed', k.body, null)
    from (select k.*, cast(unixepoch('subsec') * 1000 as integer) as at,
                 case when new.after <> 'completed' then new.after || ' after ' || new.before
                      else 'completed ' || (k.status / 100) || 'xx'
                           || case when instr(x'0d0a' || k.fields, x'0d0a' || 'grpc-status: ') = 0 then ''
                                   when instr(x'0d0a' || k.fields, x'0d0a' || 'grpc-status: 0' || x'0d0a') > 0
                                     then ' grpc-status 0'
                                   else ' grpc-status not 0' end
                 end as outcome
            from keys as k
           where k.id = new.id) as k
    join event_routes as r on r.service = k.service and r.route = k.route
   where instr(r.outcomes, ',' || k.outcome || ',') > 0;
end;
drop trigger if exists keys_tell_their_birth;
create trigger keys_tell_their_birth after insert on keys
when new.state not in ('in_flight', 'queued')
begin
  insert into key_changes (id, before, after) values (new.id, 'none', new.state);
end;
drop trigger if exists keys_tell_their_state;
create trigger keys_tell_their_state after update of state on keys
when (old.state <> new.state or old.token <> new.token) and new.state not in ('expired', 'in_flight')
 and (old.state <> 'in_flight' or new.state not in ('queued', 'retryable'))
begin
  insert into key_changes (id, before, after)
  values (new.id, iif(old.accepted_at is new.accepted_at, old.state, 'none'), new.state);
end;
drop trigger if exists keys_tell_their_end;
-- Before the deletion, so that the row is there.
create trigger keys_tell_their_end before delete on keys
when old.expires_at is null and old.state <> 'in_flight'
begin
  insert into key_changes (id, before, after) values (old.id, old.state, 'none');
end;
