-- index_statistics: the bytes of each index of the schema, and how often it was used, for a report.
select s.relname, s.indexrelname, pg_catalog.pg_relation_size(s.indexrelid) as bytes, s.idx_scan
  from pg_catalog.pg_stat_all_indexes as s
 where s.schemaname = 'oncegate'
 order by s.relname, s.indexrelname
