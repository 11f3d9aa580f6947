-- report_recovery_point: a service reports its attempt's recovery point.
update keys
   set recovery_point = :recovery_point
 where id = :id and token = :token and service = :service and state not in ('completed', 'expired')
