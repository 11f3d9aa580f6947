-- extend_deadline: moves the deadline of an attempt in flight. It never comes earlier.
update oncegate.keys as k
   set deadline = greatest(k.deadline, durable.now + $3::bigint * interval '1 millisecond')
  from durable
 where k.id = $1::bytea
   and k.token = $2::bytea
   and k.state = 'in_flight'
   and durable.setting is not null
returning k.id
