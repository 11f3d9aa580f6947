-- insert_audit_entry: adds an entry to the audit log.
insert into audit (at, service, actor, action, id, before, after, note)
values (:now, :service, :actor, :action, :id, :before, :after, :note)
