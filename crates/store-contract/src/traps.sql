-- Plants traps in the schema public, as whoever may create there could: an operator or function for each combination of
-- built-in types for which pg_catalog has none, and a type with implicit casts from all of them. Where a statement's types
-- do not say exactly which function they mean, the server takes a trap. Each call is counted in a sequence, which no rollback
-- undoes, and fails. `sources` has the texts in which the names are looked for.
create sequence public.trapped;

create function public.trap(integer) returns boolean language plpgsql as $$
begin
  perform pg_catalog.nextval('public.trapped');
  raise exception 'a trap was called';
end
$$;

create type public.trap_type as (n integer);

create temporary table built_in as
  select t.oid from pg_type as t
   where t.typnamespace = 'pg_catalog'::regnamespace and t.typtype = 'b'
     and (t.typcategory <> 'A' or t.typname in ('_bool', '_bytea', '_int2', '_int4', '_int8', '_name', '_text'));

-- Those of which combinations of three and more are tried.
create temporary table frequent as
  select t.oid from pg_type as t where t.typname in ('bytea', 'int4', 'int8', 'name', 'text', 'varchar');

create temporary table called as
  select distinct p.proname as name
    from pg_proc as p
    join (select distinct m.match[1] as word from sources as s
           cross join lateral regexp_matches(s.text, '([a-z_0-9]+)\s*\(', 'g') as m (match)) as w on w.word = p.proname
   where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind <> 'p';

create temporary table wanted as
  select 'trap'::name as name, array[l.oid, r.oid] as arguments from built_in as l cross join built_in as r
   union
  select 'trap', array['trap_type'::regtype::oid, 'trap_type'::regtype::oid]
   union
  select 'trap_type', array[b.oid] from built_in as b
   union
  select c.name, array[b.oid] from called as c cross join built_in as b
   union
  select c.name, array[l.oid, r.oid]
    from called as c cross join built_in as l cross join built_in as r
   where exists (select from pg_proc as p
                  where p.proname = c.name and p.pronamespace = 'pg_catalog'::regnamespace
                    and (p.pronargs = 2 or p.provariadic <> 0))
   union
  select c.name, v.arguments
    from called as c
   cross join lateral (
     select array[f1.oid, f2.oid, f3.oid] as arguments from frequent as f1, frequent as f2, frequent as f3
      union all
     select array[f1.oid, f2.oid, f3.oid, f4.oid] from frequent as f1, frequent as f2, frequent as f3, frequent as f4) as v
   where exists (select from pg_proc as p
                  where p.proname = c.name and p.pronamespace = 'pg_catalog'::regnamespace
                    and (p.pronargs = array_length(v.arguments, 1) or p.provariadic <> 0));

create temporary table planted as
  select 1000000 + row_number() over () as oid, w.name, w.arguments, array_to_string(w.arguments, ' ')::oidvector as types,
         coalesce(r.result, 'public.trap_type'::regtype) as result
    from wanted as w
    left join (select proname as name, min(prorettype) as result
                 from pg_proc where pronamespace = 'pg_catalog'::regnamespace group by proname) as r on r.name = w.name;
delete from planted as w
 using pg_proc as p
 where p.proname = w.name and p.proargtypes = w.types and p.pronamespace = 'pg_catalog'::regnamespace;

insert into pg_proc
select made.*
  from pg_proc as model
 cross join planted as p
 cross join lateral jsonb_populate_record(model, jsonb_build_object(
   'oid', p.oid, 'proname', p.name, 'pronargs', array_length(p.arguments, 1), 'proargtypes', p.types, 'prorettype', p.result)) as made
 where model.oid = 'public.trap(integer)'::regprocedure;

insert into pg_operator (oid, oprname, oprnamespace, oprowner, oprkind, oprcanmerge, oprcanhash, oprleft, oprright, oprresult,
                         oprcom, oprnegate, oprcode, oprrest, oprjoin)
select 3000000 + row_number() over (), o.name, 'public'::regnamespace, model.proowner, 'b', false, false, p.arguments[1],
       p.arguments[2], o.result, 0, 0, p.oid, 0, 0
  from pg_proc as model
 cross join planted as p
 cross join (select oprname as name, min(oprresult) as result from pg_operator
              where oprkind = 'b' and exists (select from sources as s where position(' ' || oprname || ' ' in s.text) > 0)
              group by oprname) as o
 where model.oid = 'public.trap(integer)'::regprocedure and p.name = 'trap'
   and not exists (select from pg_operator as k
                    where k.oprname = o.name and k.oprnamespace = 'pg_catalog'::regnamespace
                      and k.oprleft = p.arguments[1] and k.oprright = p.arguments[2]);

insert into pg_cast (oid, castsource, casttarget, castfunc, castcontext, castmethod)
select 5000000 + row_number() over (), p.arguments[1], 'public.trap_type'::regtype, p.oid, 'i', 'f'
  from planted as p where p.name = 'trap_type';
analyze pg_proc, pg_operator, pg_cast;
