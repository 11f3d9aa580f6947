-- server: what we have connected to, and whether the schema is there.
select current_setting('server_version_num')::integer as version,
       pg_is_in_recovery() as standby,
       current_setting('default_transaction_isolation') as isolation,
       -- Not to_regclass(): that may answer from the session's cache, and miss what another has just committed.
       exists (select from pg_catalog.pg_tables where schemaname = 'oncegate' and tablename = 'migrations') as migrated
