-- holder_keys: the keys of a caller that count for a holder.
select k.id
  from oncegate.keys as k
 -- Not `=`: where there are few holders, the planner would take each for a large part of the table, and read it whole.
 where k.holder between :holder and :holder and k.scope = :scope
 order by k.id
