-- store_identity: the properties that tell this store from every other one.
-- A copy by a dump has other numbers in one of the first two columns. A physical standby has the same ones.
select (select oid::bigint from pg_catalog.pg_database where datname = current_database()) as database,
       'oncegate.migrations'::regclass::oid::bigint as relation,
       (select (date_part('epoch', min(applied_at)) * 1000000::double precision)::bigint from oncegate.migrations) as created_at_us
