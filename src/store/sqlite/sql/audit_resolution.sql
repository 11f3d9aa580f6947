-- audit_resolution: the audit entry of a reconciler's verdict.
insert into audit (at, service, actor, action, id, before, after, note)
values (:now, :service, 'reconciler', :action, :id, 'unknown', :state, :note)
