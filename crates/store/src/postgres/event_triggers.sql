-- event_triggers: lets each change of a key that is told about write its events in its own transaction.
set local search_path = pg_catalog, pg_temp;
create trigger keys_tell_their_birth after insert on oncegate.keys
  for each row when (new.state in ('completed', 'unknown'))
  execute function oncegate.add_events();
create trigger keys_tell_their_state after update of state on oncegate.keys
  -- Another token in the same state: an attempt whose beginning the store has lost.
  for each row when ((old.state <> new.state or old.token <> new.token)
                     and (new.state in ('completed', 'dead', 'unknown')
                          or old.state in ('dead', 'unknown') and new.state in ('queued', 'retryable')
                             -- A request that is accepted over an unknown key says nothing of the attempt before it.
                             and old.accepted_at is not distinct from new.accepted_at))
  execute function oncegate.add_events();
create trigger keys_tell_their_end after delete on oncegate.keys
  for each row when (old.state in ('dead', 'unknown'))
  execute function oncegate.add_events();
