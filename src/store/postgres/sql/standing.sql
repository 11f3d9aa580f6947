-- standing: what is in flight under an instance's name, for it to compare with what it is running.
select k.id, k.token
  from oncegate.keys as k
 where k.state = 'in_flight'
   and k.instance = $1::bigint
   and k.reserved_at <= clock_timestamp() - $2::bigint * interval '1 millisecond'
