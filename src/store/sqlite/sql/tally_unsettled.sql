-- tally_unsettled: what is in flight, queued, unknown or dead, by route; of each state up to a limit.
select u.route, u.state, count(*) as rows
  from (-- Each with a limit of its own: what waits in one state hides nothing of what stands in another.
        select * from (select route, state from keys where state = 'in_flight' and service = :service limit :limit)
         union all
        select * from (select route, state from keys where state = 'queued' and service = :service limit :limit)
         union all
        select * from (select route, state from keys
                        where state in ('dead', 'unknown') -- as the index says it, which is not used otherwise
                          and state = 'unknown' and service = :service limit :limit)
         union all
        select * from (select route, state from keys
                        where state in ('dead', 'unknown')
                          and state = 'dead' and service = :service limit :limit)) as u
 group by u.route, u.state
