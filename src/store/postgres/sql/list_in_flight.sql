-- list_in_flight: keys in flight under an instance's name, which the instance compares with its running attempts.
with writable as materialized (
  -- A server that takes no writes shows old records. It refuses a lock even on no rows, and the connection is dropped.
  select from oncegate.instances where false for update
)
select k.id, k.token, k.route
  from oncegate.keys as k
 where k.state = 'in_flight'
   and k.instance = $1::bigint
   -- From later than now: reserved before the clock was set back, nobody knows how long ago.
   and (k.reserved_at <= clock_timestamp() - $2::bigint * interval '1 millisecond' or k.reserved_at > clock_timestamp())
   and not exists (select from writable)
