-- await_durability: returns when everything visible before it is as durable as a commit of our own. A commit whose
-- session was cut off while it waited for its standby is visible, and the standby may not have it yet.
select pg_logical_emit_message(true, 'oncegate', '')
