-- server_properties: the server's version and settings, and whether the schema exists.
select current_setting('server_version_num')::integer as version,
       pg_is_in_recovery() as standby,
       current_setting('default_transaction_isolation') as isolation,
       current_setting('client_min_messages') as notices,
       -- Not to_regclass(): it may answer from the session's cache and miss a commit of another session.
       exists (select from pg_catalog.pg_tables where schemaname = 'oncegate' and tablename = 'migrations') as migrated
