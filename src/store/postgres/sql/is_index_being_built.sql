-- is_index_being_built: whether somebody is building an index on a table of ours, as far as our role may see that; the
-- oldest transaction that runs, and the one that will begin next.
select exists (
         select from pg_catalog.pg_stat_progress_create_index as p
          where p.relid in (select c.oid
                              from pg_catalog.pg_class as c
                              join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                             where n.nspname = 'oncegate')
            and p.datname = current_database()) as building,
       txid_snapshot_xmin(s) as oldest,
       txid_snapshot_xmax(s) as next
  from txid_current_snapshot() as s
