-- server_role: whether this server takes writes, and what tells it from the other servers of the URL.
select not pg_is_in_recovery() and current_setting('transaction_read_only') = 'off' as takes_writes,
       -- The first eight digits are the timeline. A standby writes no log, and refuses the question.
       case when not pg_is_in_recovery() then pg_walfile_name(pg_current_wal_lsn()) end as wal_file,
       (select system_identifier from pg_control_system()) as system,
       -- One server under two names, or behind two poolers, has started once.
       (date_part('epoch', pg_postmaster_start_time()) * 1000000::double precision)::bigint as started_at_us
