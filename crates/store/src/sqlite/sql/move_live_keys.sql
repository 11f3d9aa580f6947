-- move_live_keys: lets a key, and its caller's other keys with the same holder, count for another holder.
update keys set holder = :holder
 where holder = (select holder from keys where id = :id) and scope = :scope and holder <> :holder
