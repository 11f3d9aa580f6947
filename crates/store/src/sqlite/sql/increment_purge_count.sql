-- increment_purge_count: increments the purge count.
update counters set value = value + 1 where name = 'purges' returning value
