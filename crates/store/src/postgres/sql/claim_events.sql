-- claim_events: takes events that are due for a publisher, the oldest first; of each key only the oldest that waits.
with due as materialized (
  select f.seq
    from oncegate.events as f
   where f.service = :service and f.sink = :sink and f.due_at <= :now
     and not exists (select 1 from oncegate.events as g
                      where g.id = f.id and g.sink = f.sink and g.seq < f.seq and g.due_at is not null and g.service = f.service)
   order by f.due_at, f.seq
   limit :limit
     for no key update of f skip locked
)
update oncegate.events as e
   set due_at = :now + :lease_ms, tries = e.tries + 1
  from due
 where e.seq = due.seq
returning e.seq, e.at, e.created_at, e.reserved_at, e.settled_at, e.attempt, e.since, e.tries, e.status, e.id, e.token, e.outcome, e.state, e.route, e.key, e.cause, e.fields, e.body
