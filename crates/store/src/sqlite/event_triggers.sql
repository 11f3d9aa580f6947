-- event_triggers: lets each change of a key that is told about write its events in its own transaction. They are due at once by any
-- clock: a simulation has its own. A refusal has a type of its own, as in PostgreSQL.
drop trigger if exists keys_tell_their_birth;
create trigger keys_tell_their_birth after insert on keys
when new.state in ('completed', 'unknown')
begin
  insert into events (at, created_at, reserved_at, settled_at, since, due_at, attempt, status, id, token, type, state, service, sink, route, key, cause, fields, body)
  select cast(unixepoch('subsec') * 1000 as integer), new.created_at, new.reserved_at, new.settled_at, cast(unixepoch('subsec') * 1000 as integer), 0, new.attempt,
         iif(new.state = 'completed', new.status, null), new.id, new.token, w.type, new.state, new.service, r.sink, new.route, new.key,
         iif(new.state = 'unknown', new.cause, null), iif(r.body and new.state = 'completed', new.fields, null),
         iif(r.body and new.state = 'completed', new.body, null)
    from event_routes as r,
         (select case new.state when 'completed' then iif(new.status >= 400 or
                                                          instr(x'0d0a' || new.fields, x'0d0a' || 'grpc-status: ') > 0
                                                          and instr(x'0d0a' || new.fields, x'0d0a' || 'grpc-status: 0' || x'0d0a') = 0,
                                                          'refused', 'completed')
                      when 'dead' then 'given-up' when 'unknown' then 'unknown' else 'resolved' end as type) as w
   where r.service = new.service and r.route = new.route and instr(r.types, ',' || w.type || ',') > 0;
end;
drop trigger if exists keys_tell_their_state;
create trigger keys_tell_their_state after update of state on keys
-- As in PostgreSQL.
when (old.state <> new.state or old.token <> new.token)
 and (new.state in ('completed', 'dead', 'unknown')
      or old.state in ('dead', 'unknown') and new.state in ('queued', 'retryable') and old.accepted_at is new.accepted_at)
begin
  insert into events (at, created_at, reserved_at, settled_at, since, due_at, attempt, status, id, token, type, state, service, sink, route, key, cause, fields, body)
  select cast(unixepoch('subsec') * 1000 as integer), new.created_at, new.reserved_at, new.settled_at, cast(unixepoch('subsec') * 1000 as integer), 0, new.attempt,
         iif(new.state = 'completed', new.status, null), new.id, new.token, w.type, new.state, new.service, r.sink, new.route, new.key,
         iif(new.state = 'unknown', new.cause, null), iif(r.body and new.state = 'completed', new.fields, null),
         iif(r.body and new.state = 'completed', new.body, null)
    from event_routes as r,
         (select case new.state when 'completed' then iif(new.status >= 400 or
                                                          instr(x'0d0a' || new.fields, x'0d0a' || 'grpc-status: ') > 0
                                                          and instr(x'0d0a' || new.fields, x'0d0a' || 'grpc-status: 0' || x'0d0a') = 0,
                                                          'refused', 'completed')
                      when 'dead' then 'given-up' when 'unknown' then 'unknown' else 'resolved' end as type) as w
   where r.service = new.service and r.route = new.route and instr(r.types, ',' || w.type || ',') > 0;
end;
drop trigger if exists keys_tell_their_end;
create trigger keys_tell_their_end after delete on keys
when old.state in ('dead', 'unknown')
begin
  insert into events (at, created_at, reserved_at, settled_at, since, due_at, attempt, status, id, token, type, state, service, sink, route, key, cause, fields, body)
  select cast(unixepoch('subsec') * 1000 as integer), old.created_at, old.reserved_at, old.settled_at, cast(unixepoch('subsec') * 1000 as integer), 0, old.attempt,
         iif(null = 'completed', old.status, null), old.id, old.token, w.type, null, old.service, r.sink, old.route, old.key,
         iif(null = 'unknown', old.cause, null), iif(r.body and null = 'completed', old.fields, null),
         iif(r.body and null = 'completed', old.body, null)
    from event_routes as r,
         (select 'resolved' as type) as w
   where r.service = old.service and r.route = old.route and instr(r.types, ',' || w.type || ',') > 0;
end;
