-- tally_unsettled: what is in flight, queued, unknown or dead, by route; up to a limit.
select u.route, u.state, count(*) as rows
  from (select k.route, k.state
          from oncegate.keys as k
         where k.state = 'in_flight' and k.service = $1::text
         union all
        select k.route, k.state
          from oncegate.keys as k
         where k.state = 'queued' and k.service = $1
         union all
        select k.route, k.state
          from oncegate.keys as k
         where k.state in ('dead', 'unknown') and k.service = $1::text
         limit $2::bigint) as u
 group by u.route, u.state
