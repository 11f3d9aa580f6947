-- give_up: marks an accepted key dead that is not tried again.
update keys
   set state = 'dead', settled_at = :now, due_at = iif(state = 'unknown', null, :now)
 where id = :id and token = :token and state = :state and accepted_at is not null
returning service
