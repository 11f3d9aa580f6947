-- discard_events: deletes dead events of a sink, each with its audit entry: the key's state is what it was.
with discarded as (
  delete from oncegate.events as e
   where e.seq in (select d.seq from oncegate.events as d
                    where d.service = :service and d.sink = :sink and d.due_at is null
                    order by d.seq
                    limit 10000)
     and e.due_at is null
  returning e.seq, e.id, e.outcome, e.state, e.note
)
insert into oncegate.audit (at, service, actor, action, id, before, after, note)
select :now, :service, :actor, 'discard event', d.id, coalesce(d.state, 'none'), coalesce(d.state, 'none'),
       coalesce(:types::json ->> d.outcome, d.outcome) || ' ' || d.seq::text || ' for ' || :sink || coalesce(': ' || d.note, '')
  from discarded as d
 order by d.seq
returning seq
