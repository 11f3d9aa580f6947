-- Spreads the table of keys over hash partitions, for a table that is too large for one vacuum or one disk.
-- docs/growing.md explains when to use it and its costs.
--
--   psql -v ON_ERROR_STOP=1 -v partitions=8 -f partition.sql "$URL"
--
-- Run it as the schema's owner, with every proxy stopped. It locks the table and copies it, all in one transaction: if it
-- fails, nothing has changed. Grants to other roles are lost; repeat them.
begin;
set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '5s';
lock table oncegate.keys in access exclusive mode;
select set_config('oncegate.partitions', :'partitions', true);

create temporary table definitions on commit drop as
  select indexname, indexdef from pg_indexes where schemaname = 'oncegate' and tablename = 'keys';

alter table oncegate.keys rename to keys_whole;
do $$
declare
  definition record;
begin
  for definition in select * from definitions loop
    execute format('alter index oncegate.%I rename to %I', definition.indexname, 'whole_' || definition.indexname);
  end loop;
end $$;

create table oncegate.keys (
  like oncegate.keys_whole including defaults including constraints including comments including storage
) partition by hash (id);

do $$
declare
  partitions constant integer := current_setting('oncegate.partitions')::integer;
  options constant text[] := (select reloptions from pg_class where oid = 'oncegate.keys_whole'::regclass);
  definition record;
begin
  for number in 0 .. partitions - 1 loop
    execute format('create table oncegate.%I partition of oncegate.keys for values with (modulus %s, remainder %s) with (%s)',
                   'keys_' || number, partitions, number, array_to_string(options, ', '));
  end loop;
  insert into oncegate.keys select * from oncegate.keys_whole;
  alter table oncegate.keys add constraint keys_pkey primary key (id);
  for definition in select * from definitions where indexname <> 'keys_pkey' loop
    execute definition.indexdef;
  end loop;
end $$;

drop table oncegate.keys_whole;
commit;
analyze oncegate.keys;
