-- requeue_events: lets dead events of a sink be tried again from now on.
update oncegate.events
   set due_at = :now, since = :now, note = null
 where seq in (select e.seq from oncegate.events as e
                where e.service = :service and e.sink = :sink and e.due_at is null
                order by e.seq
                limit 10000)
returning seq
