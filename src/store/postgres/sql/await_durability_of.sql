-- await_durability_of: await_durability on the node of a cluster that has the key.
select pg_logical_emit_message(true, 'oncegate', '') from oncegate.keys as k where k.id = :id
