-- count_events: counts the waiting and the dead events of a sink, up to 10,000 of each, with the oldest that waits, and
-- why one of them waits and the newest is dead.
select w.waiting, d.dead, w.oldest_at, w.waiting_note,
       (select e.note from oncegate.events as e where e.service = :service and e.sink = :sink and e.due_at is null
         order by e.seq desc limit 1) as note
  from (select count(*) as waiting, min(f.at) as oldest_at, max(f.note) as waiting_note
          from (select e.at, e.note from oncegate.events as e
                 where e.service = :service and e.sink = :sink and e.due_at is not null
                 order by e.due_at, e.seq limit 10000) as f) as w,
       (select count(*) as dead
          from (select 1 from oncegate.events as e
                 where e.service = :service and e.sink = :sink and e.due_at is null limit 10000) as f) as d
