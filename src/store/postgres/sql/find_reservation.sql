-- find_reservation: the keys of reservations, with the tokens of their newest attempts.
with writable as materialized (
  -- A server that takes no writes shows old records. It refuses a lock even on no rows, and the connection is dropped.
  select from oncegate.instances where false for update
)
select k.id, k.service, k.token, k.route, k.state
  from unnest($1::bytea[]) as wanted (id)
  join oncegate.keys as k on k.id = wanted.id
 where not exists (select from writable)
