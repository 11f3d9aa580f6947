-- await_durability_of: await_durability on the node of a cluster that has the key.
select pg_catalog.concat_ws(' ', (date_part('epoch', pg_postmaster_start_time()) * 1000000::double precision)::bigint,
                 replace(current_setting('synchronous_commit'), 'off', 'on'), current_setting('synchronous_standby_names')) as standbys,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint as horizon,
       pg_logical_emit_message(true, 'oncegate', '')
  from oncegate.keys as k
 where k.id = :id
   and current_setting('synchronous_standby_names') <> '' and current_setting('synchronous_commit') <> 'local'
