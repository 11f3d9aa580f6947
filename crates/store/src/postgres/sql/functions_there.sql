-- functions_there: which of these functions the schema has.
select distinct p.proname::text as name
  from pg_catalog.pg_proc as p
  join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
 where n.nspname = 'oncegate' and p.proname = any ($1::text[]::name[])
