-- buried: the reason for it, in the audit.
insert into audit (at, service, actor, action, id, before, after, note)
values (:now, :service, 'delivery', 'give_up', :id, :state, 'dead', :note)
