-- table_statistics: the bytes of each table of the schema, with its rows and its last vacuum, for a report.
select s.relname, pg_catalog.pg_table_size(s.relid) as bytes, s.n_live_tup, s.n_dead_tup, s.last_autovacuum
  from pg_catalog.pg_stat_all_tables as s
 where s.schemaname = 'oncegate'
 order by s.relname
