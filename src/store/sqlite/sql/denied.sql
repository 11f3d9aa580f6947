-- denied: the line about it, in the audit.
insert into audit (at, service, actor, action, id, before, after)
values (:now, :service, 'service', 'not_executed', :id, :before, :after)
