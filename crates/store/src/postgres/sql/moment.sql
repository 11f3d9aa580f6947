-- moment: the store's time. Asks for a lock on nothing, which a server that takes no writes refuses (25006): it would
-- show old records.
with writable as materialized (select from oncegate.instances where false for update)
select floor(date_part('epoch', clock_timestamp()) * 1000::double precision)::bigint as now
 where not exists (select from writable)
