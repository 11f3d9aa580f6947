-- purge_count: how often keys were purged.
select c.value as purges from oncegate.counters as c where c.name = 'purges'
