-- fix_search_path: lets names mean the server's own operators and functions for the rest of the session, if this
-- process serves it. Each name says its schema: the session still has the path that the database's owner has set.
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false) as search_path
 where pg_catalog.pg_backend_pid() operator(pg_catalog.=) $1
