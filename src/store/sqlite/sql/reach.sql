-- reach: a service says how far its attempt has come.
update keys
   set recovery_point = :name
 where id = :id and token = :token and service = :service and state not in ('completed', 'expired')
