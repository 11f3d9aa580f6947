-- await_durability: returns when everything visible before it is as durable as a commit of our own, see durability.rs.
-- A server that waits for no standby shows only what is on its disk, and writes nothing.
select pg_catalog.concat_ws(' ', (date_part('epoch', pg_postmaster_start_time()) * 1000000::double precision)::bigint,
                 replace(current_setting('synchronous_commit'), 'off', 'on'), current_setting('synchronous_standby_names')) as standbys,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint as horizon,
       pg_logical_emit_message(true, 'oncegate', '')
 where current_setting('synchronous_standby_names') <> '' and current_setting('synchronous_commit') <> 'local'
