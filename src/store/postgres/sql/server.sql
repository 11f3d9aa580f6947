-- server: what we have connected to, and whether the schema is there.
select current_setting('server_version_num')::integer as version,
       pg_is_in_recovery() as standby,
       current_setting('default_transaction_isolation') as isolation,
       to_regclass('oncegate.migrations') is not null as migrated
