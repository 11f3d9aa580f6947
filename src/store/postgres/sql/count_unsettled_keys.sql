-- count_unsettled_keys: keys in flight, queued, unknown or dead, by route; at most $2 of each state.
select u.route, u.state, count(*) as rows
  from (-- A limit for each state: a backlog in one state hides nothing of another.
        (select k.route, k.state from oncegate.keys as k
          where k.state = 'in_flight' and k.service = $1::text limit $2::bigint)
         union all
        (select k.route, k.state from oncegate.keys as k where k.state = 'queued' and k.service = $1 limit $2)
         union all
        (select k.route, k.state from oncegate.keys as k where k.state = 'unknown' and k.service = $1 limit $2)
         union all
        (select k.route, k.state from oncegate.keys as k where k.state = 'dead' and k.service = $1 limit $2)) as u
 group by u.route, u.state
