-- propose: writes an operator's proposal about a key that is still as it was seen into the audit log.
insert into audit (at, service, actor, action, id, before, after, note)
select :now, :service, :actor, :action, k.id, k.state, k.state, :note
  from keys as k
 where k.id = :id
   and k.service = :service
   and k.token = :token
   and k.state = :seen_state
