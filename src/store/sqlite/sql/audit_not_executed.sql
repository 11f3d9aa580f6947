-- audit_not_executed: the audit entry of a report that an attempt was not executed.
insert into audit (at, service, actor, action, id, before, after)
values (:now, :service, 'service', 'not_executed', :id, :before, :after)
