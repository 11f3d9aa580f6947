-- audit_give_up: the audit entry of a key that was given up.
insert into audit (at, service, actor, action, id, before, after, note)
values (:now, :service, 'delivery', 'give_up', :id, :state, 'dead', :note)
