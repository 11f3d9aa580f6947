-- current_row: the current state of a key that a decision left unchanged, and its last audit entry.
select k.token, k.state, k.deadline, a.actor, a.action, a.after, :now as now
  from (select 1 as one) as none
  left join oncegate.keys as k on k.id = :id and k.service = :service
  left join (select l.actor, l.action, l.after
               from oncegate.audit as l
              where l.id = :id and l.service = :service
              order by l.seq desc
              limit 1) as a on true
