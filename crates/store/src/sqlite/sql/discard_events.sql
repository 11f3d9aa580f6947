-- discard_events: deletes dead events of a sink, those that audit_discarded_events has written down.
delete from events
 where seq in (select e.seq from events as e
                where e.service = :service and e.sink = :sink and e.due_at is null
                order by e.seq
                limit 10000)
