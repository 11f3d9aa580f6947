-- resolved: the reason for it, in the audit.
insert into audit (at, service, actor, action, id, before, after, note)
values (:now, :service, 'reconciler', :action, :id, 'unknown', :state, :note)
