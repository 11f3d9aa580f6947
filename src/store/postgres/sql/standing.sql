-- standing: what is in flight under an instance's name, for it to compare with what it is running.
with here as materialized (
  -- A server that takes no writes shows records as they were. It refuses a lock on nothing, and the connection goes.
  select from oncegate.instances where false for update
)
select k.id, k.token
  from oncegate.keys as k
 where k.state = 'in_flight'
   and k.instance = $1::bigint
   and k.reserved_at <= clock_timestamp() - $2::bigint * interval '1 millisecond'
   and not exists (select from here)
