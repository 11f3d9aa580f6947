-- enqueue_over: enqueue for a key that has a record, if it is still as it was seen; past its TTL a new life begins.
update oncegate.keys as k
   set state = 'queued', attempt = iif(:past_ttl_at is null, attempt, 0),
       deadline = :now, settled_at = :now, accepted_at = :now, due_at = :now,
       {taken_over}
 where
   {may_take_over}
