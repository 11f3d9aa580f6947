-- enqueue_over: enqueue for a key that has a record, if it is still as it was seen; past its TTL a new life begins.
update keys as k
   set state = iif(:time_limit_ms is null, 'queued', 'in_flight'),
       attempt = iif(:past_ttl_at is null, attempt, 0) + iif(:time_limit_ms is null, 0, 1),
       deadline = :now + coalesce(:time_limit_ms, 0), settled_at = iif(:time_limit_ms is null, :now, null),
       accepted_at = iif(:time_limit_ms is null, :now, null), due_at = :now,
       {taken_over}
 where
   {may_take_over}
returning attempt, recovery_point
