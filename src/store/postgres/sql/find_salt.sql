-- find_salt: a service's salt, whichever instance drew it.
with writable as materialized (
  -- A server that takes no writes may show another one. It refuses a lock even on no rows, and the connection is dropped.
  select from oncegate.instances where false for update
)
select s.value from oncegate.salts as s where s.service = $1::text and not exists (select from writable)
