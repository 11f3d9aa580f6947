-- current_rows: the current state of a key that a decision left unchanged, and its last audit entry.
select :id as id, k.token, k.state, k.deadline - :now as deadline_in_ms, a.actor, a.action, a.after
  from (select 1)
  left join keys as k on k.id = :id and k.service = :service
  left join audit as a
         on a.seq = (select max(l.seq) from audit as l where l.id = :id and l.service = :service)
