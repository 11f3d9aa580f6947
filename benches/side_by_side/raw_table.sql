-- A table equal to the store's, with nothing in it.
create schema raw;
create table raw.keys (like oncegate.keys including all);
do $$
declare options text;
begin
  select array_to_string(reloptions, ', ') into options from pg_class where oid = 'oncegate.keys'::regclass;
  if options is not null then
    execute format('alter table raw.keys set (%s)', options);
  end if;
end
$$;
