-- server_properties: why this server cannot have the store, and whether the schema exists.
select case
         -- What is used is older; earlier servers get no fixes any more.
         when current_setting('server_version_num')::integer < 130000 then 'PostgreSQL 13 or newer is needed'
         when pg_is_in_recovery() then 'the server is a standby, which may return old records'
         when current_setting('default_transaction_isolation') <> 'read committed'
           then 'the role''s default_transaction_isolation is ' || current_setting('default_transaction_isolation')
                || '; it must be read committed'
         when current_setting('client_min_messages') = 'error'
           then 'the role''s client_min_messages is error; it must be warning or lower, as only a warning says that a commit is '
                'not durable'
       end as refusal,
       -- Not to_regclass(): it may answer from the session's cache and miss a commit of another session.
       exists (select from pg_catalog.pg_tables where schemaname = 'oncegate' and tablename = 'migrations') as migrated
