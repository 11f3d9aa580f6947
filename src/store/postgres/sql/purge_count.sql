-- purge_count: how often keys were purged.
select value from oncegate.counters where name = 'purges'
