-- index_states: which of these indexes exist, and whether they are valid.
select c.relname::text as name, i.indisvalid as valid
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
  join pg_catalog.pg_index as i on i.indexrelid = c.oid
 where n.nspname = 'oncegate' and c.relname = any ($1::text[]::name[])
