-- count_unsettled_keys: keys in flight, queued, unknown or dead, by route; at most so many of each state.
select u.route, u.state, count(*) as rows
  from (-- A limit for each state: a backlog in one state hides nothing of another.
        select f.* from (select k.route, k.state from oncegate.keys as k
                        where k.state = 'in_flight' and k.service = :service limit :limit) as f
         union all
        select q.* from (select k.route, k.state from oncegate.keys as k
                        where k.state = 'queued' and k.service = :service limit :limit) as q
         union all
        select u.* from (select k.route, k.state from oncegate.keys as k
                        where k.state in ('dead', 'unknown') -- as in the index, which is not used otherwise
                          and k.state = 'unknown' and k.service = :service limit :limit) as u
         union all
        select d.* from (select k.route, k.state from oncegate.keys as k
                        where k.state in ('dead', 'unknown') and k.state = 'dead' and k.service = :service limit :limit) as d) as u
 group by u.route, u.state
