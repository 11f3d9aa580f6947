-- Spreads the table of keys over hash partitions, for a table that has outgrown one relation's vacuum, or one disk.
-- docs/growing.md says when that pays, and what it costs.
--
--   psql -v ON_ERROR_STOP=1 -v partitions=8 -f partition.sql "$URL"
--
-- As the schema's owner, and with every proxy stopped: it locks the table and copies it, all in one transaction. Whatever fails, nothing has changed.
-- What was granted to other roles is to be granted again.
-- Later migrations that add an index build it `concurrently`, which PostgreSQL refuses for a partitioned table: such an
-- index is then made by hand, before the new version starts (migrations/README.md).
begin;
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
