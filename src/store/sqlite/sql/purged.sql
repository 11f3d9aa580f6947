-- purged: the count that grows with each purge.
update counters set value = value + 1 where name = 'purges' returning value
