-- Distributes the keys over the nodes of a Citus cluster, by their ids. `store.distribute = true` does the same for a new store;
-- docs/growing.md explains when to use it and its costs.
--
--   psql -v ON_ERROR_STOP=1 -1 -f distribute.sql "$URL"
--
-- Run it on the coordinator as the schema's owner, with every proxy stopped: it copies the keys that there are. The workers must
-- be known to the coordinator before (citus_set_coordinator_host, citus_add_node).
set local search_path = pg_catalog, pg_temp;
do $$
begin
  if exists (select from oncegate.instances where lease_until > floor(date_part('epoch', clock_timestamp()) * 1000)) then
    raise exception 'a proxy still has a lease on this store'
      using hint = 'Stop all proxies of the store. After one was killed, wait until its lease has ended (10 s).';
  end if;
end
$$;
select create_distributed_table('oncegate.keys', 'id');
-- With its key, so that one node commits both.
select create_distributed_table('oncegate.outbox', 'id', colocate_with => 'oncegate.keys');
select create_distributed_table('oncegate.deferred_reports', 'id', colocate_with => 'oncegate.keys');
-- They stay on the coordinator. The cluster knows of them, so that it commits them and a key together or not at all.
select citus_add_local_table_to_metadata('oncegate.audit');
select citus_add_local_table_to_metadata('oncegate.counters');
-- The copies that the coordinator had: a purge would not reach them.
select truncate_local_data_after_distributing_table('oncegate.keys');
select truncate_local_data_after_distributing_table('oncegate.outbox');
select truncate_local_data_after_distributing_table('oncegate.deferred_reports');
