-- look: how a key stands that a decision did not take, and what was last decided about it.
select :id as id, k.token, k.state, k.deadline - :now as deadline_in_ms, a.actor, a.action, a.after
  from (select 1)
  left join keys as k on k.id = :id and k.service = :service
  left join audit as a
         on a.seq = (select max(l.seq) from audit as l where l.id = :id and l.service = :service)
