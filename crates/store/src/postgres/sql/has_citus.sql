-- has_citus: whether the database has the extension of a cluster.
select exists (select from pg_catalog.pg_extension as e where e.extname = 'citus') as found
