-- note: a line of the audit log.
insert into audit (at, service, actor, action, id, before, after, note)
values (:now, :service, :actor, :action, :id, :before, :after, :note)
