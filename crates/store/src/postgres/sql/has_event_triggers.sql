-- has_event_triggers: tells whether changes of keys write events.
select exists (select from pg_catalog.pg_trigger where tgrelid = 'oncegate.keys'::regclass::oid and tgname = 'keys_tell_their_state')
