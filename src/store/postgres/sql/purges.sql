-- purges: how many there have been.
select value from oncegate.counters where name = 'purges'
