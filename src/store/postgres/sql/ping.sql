-- ping: whether this server takes writes. Asks for a lock on nothing, which one that does not refuses (25006).
select from oncegate.instances where false for update
