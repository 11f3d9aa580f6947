-- claim_events: takes events that are due for a publisher, the oldest first; of each key only the oldest that waits.
update events
   set due_at = :now + :lease_ms, tries = tries + 1
 where seq in (
  select f.seq
    from events as f
   where f.service = :service and f.sink = :sink and f.due_at <= :now
     and not exists (select 1 from events as g
                      where g.id = f.id and g.sink = f.sink and g.seq < f.seq and g.due_at is not null and g.service = f.service)
   order by f.due_at, f.seq
   limit :limit
 )
returning seq, at, created_at, reserved_at, settled_at, attempt, since, tries, status, id, token, outcome, state, route, key, cause, fields, body
