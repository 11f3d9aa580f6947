-- open_schemas: the schemas of a search path, and Oncegate's own, in which other roles may create something, with these
-- roles. Superusers, this role, and the owner of Oncegate's schema may do everything anyway.
select n.nspname::text as schema, pg_catalog.quote_ident(current_user::text) as role,
       pg_catalog.string_agg(distinct case when a.grantee = 0::oid then 'everybody' else r.rolname::text end, ', '::text) as roles
  from pg_catalog.pg_namespace as n
 cross join lateral pg_catalog.aclexplode(coalesce(n.nspacl, pg_catalog.acldefault('n'::"char", n.nspowner))) as a
  left join pg_catalog.pg_roles as g on g.oid = a.grantee
  left join pg_catalog.pg_database as d on d.datname = current_database() and g.rolname = 'pg_database_owner'
  left join pg_catalog.pg_roles as r on r.oid = coalesce(d.datdba, a.grantee)
 where (n.nspname::text = any ($1) or n.nspname = 'oncegate')
   and n.nspname <> 'pg_catalog'
   and a.privilege_type = 'CREATE'
   and (a.grantee = 0::oid
        or not (r.rolsuper
                or r.rolname = current_user
                or r.oid = (select o.nspowner from pg_catalog.pg_namespace as o where o.nspname = 'oncegate')))
 group by n.nspname
 order by n.nspname
