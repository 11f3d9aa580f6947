-- has_event_triggers: whether changes of keys write their events.
select count(*) > 0 as there from sqlite_schema where type = 'trigger' and name = 'keys_tell_their_state'
