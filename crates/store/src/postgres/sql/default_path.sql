-- default_path: the schemas of the search path.
select pg_catalog.current_schemas(false)::text[] as path
