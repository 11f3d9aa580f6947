-- count_unsettled_keys: keys in flight, queued, unknown or dead, by route; at most :limit of each state.
select u.route, u.state, count(*) as rows
  from (-- A limit for each state: a backlog in one state hides nothing of another.
        select * from (select route, state from keys where state = 'in_flight' and service = :service limit :limit)
         union all
        select * from (select route, state from keys where state = 'queued' and service = :service limit :limit)
         union all
        select * from (select route, state from keys
                        where state in ('dead', 'unknown') -- as in the index, which is not used otherwise
                          and state = 'unknown' and service = :service limit :limit)
         union all
        select * from (select route, state from keys
                        where state in ('dead', 'unknown')
                          and state = 'dead' and service = :service limit :limit)) as u
 group by u.route, u.state
