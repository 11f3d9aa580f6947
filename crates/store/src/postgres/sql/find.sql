-- find: records by id, without the response where it is larger than the limit. A statement of its own: one snapshot
-- cannot show the row that an insert has just lost to.
select k.id, k.attempt, k.token, k.recipe, k.fingerprint, k.state, k.reserved_at, k.deadline, k.settled_at, k.expires_at,
       k.remember_ms, k.accepted_at, k.recovery_point, k.cause, k.inquire_at, k.status,
       -- The lengths are known without reading the values.
       case when coalesce(length(k.fields), 0)::bigint + coalesce(length(k.body), 0) <= $2 then k.fields end as fields,
       case when coalesce(length(k.fields), 0)::bigint + coalesce(length(k.body), 0) <= $2 then k.body end as body,
       coalesce(length(k.fields), 0)::bigint + coalesce(length(k.body), 0) as bytes,
       -- Whether the row is as durable as a commit of our own, see durability.rs: null where commits wait for no
       -- standby.
       case when current_setting('synchronous_standby_names') <> '' and current_setting('synchronous_commit') <> 'local'
            then pg_catalog.concat_ws(' ', (date_part('epoch', pg_postmaster_start_time()) * 1000000::double precision)::bigint,
                           replace(current_setting('synchronous_commit'), 'off', 'on'), current_setting('synchronous_standby_names'))
       end as standbys,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint as horizon,
       k.xmin::text::bigint as writer
  from oncegate.keys as k
 where k.id = any ($1)
