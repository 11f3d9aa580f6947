-- extend_deadline: moves the deadline of an attempt in flight. It never comes earlier.
update keys
   set deadline = max(deadline, :now + :time_limit_ms)
 where id = :id and token = :token and state = 'in_flight'
