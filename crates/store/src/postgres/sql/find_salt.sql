-- find_salt: a service's salt, whichever instance drew it, and whether the row is as durable as a commit of our own,
-- see durability.rs.
select s.value,
       case when current_setting('synchronous_standby_names') <> '' and current_setting('synchronous_commit') <> 'local'
            then pg_catalog.concat_ws(' ', (date_part('epoch', pg_postmaster_start_time()) * 1000000::double precision)::bigint,
                           replace(current_setting('synchronous_commit'), 'off', 'on'), current_setting('synchronous_standby_names'))
       end as standbys,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint as horizon,
       s.xmin::text::bigint as writer
  from oncegate.salts as s
 where s.service = :service
