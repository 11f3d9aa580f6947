-- Deletes the keys of other stores, on each copy of a store that is split. docs/growing.md ("Several stores") has the steps.
--
--   psql -v ON_ERROR_STOP=1 -v shards=2 -v shard=0 -f split.sql "$URL"
--
-- `shards` is the number of stores after the split, `shard` the number of this one, from 0. Run it as the schema's owner, with every
-- proxy of the store stopped. The audit log stays whole on both sides: its entries cannot be deleted.

set search_path = pg_catalog, pg_temp;

-- As in deploy/haproxy/sharding.cfg: the first 60 bits of the SHA-256 of the key in small letters, modulo the number of stores.
create function pg_temp.shard_of(key bytea, shards bigint) returns bigint
language sql immutable
as $$
  select ('x' || left(encode(sha256(convert_to(lower(convert_from(key, 'UTF8') collate "C"), 'UTF8')), 'hex'), 15))::bit(60)::bigint
         % shards
$$;

-- Keys that a proxy would go on with: both copies would deliver them, ask the service about them, or alert. They are few.
begin;
set local lock_timeout = '5s';
lock table oncegate.keys in access exclusive mode;
do $$
begin
  if exists (select from oncegate.instances where lease_until > floor(date_part('epoch', clock_timestamp()) * 1000)) then
    raise exception 'a proxy still has a lease on this store'
      using hint = 'Stop all proxies of the store. After one was killed, wait until its lease has ended (10 s).';
  end if;
end
$$;
delete from oncegate.keys
 where state in ('dead', 'in_flight', 'queued', 'unknown') and pg_temp.shard_of(key, :'shards') <> :'shard';
delete from oncegate.outbox as o where not exists (select from oncegate.keys as k where k.id = o.id);
delete from oncegate.deferred_reports as d where not exists (select from oncegate.keys as k where k.id = d.id);
commit;

-- From here on the proxies may run. No request asks for the other keys here, and the reaper would delete them at the end of their TTL.
delete from oncegate.keys where pg_temp.shard_of(key, :'shards') <> :'shard';
-- What was counted before belongs to both: one store has it, so that a sum over all has it once.
delete from oncegate.weekly_counts where :'shard' <> 0;
analyze oncegate.keys;
