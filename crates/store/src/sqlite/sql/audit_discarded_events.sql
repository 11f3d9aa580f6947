-- audit_discarded_events: writes the dead events of a sink that are discarded into the audit log: the key's state is
-- what it was.
insert into audit (at, service, actor, action, id, before, after, note)
select :now, :service, :actor, 'discard event', e.id, coalesce(e.state, 'none'), coalesce(e.state, 'none'),
       coalesce(:types ->> e.outcome, e.outcome) || ' ' || e.seq || ' for ' || :sink || coalesce(': ' || e.note, '')
  from events as e
 where e.service = :service and e.sink = :sink and e.due_at is null
 order by e.seq
 limit 10000
