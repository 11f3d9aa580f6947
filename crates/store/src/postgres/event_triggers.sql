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
