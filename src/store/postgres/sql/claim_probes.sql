-- claim_probes: claims unknown keys that are due for a probe. Counts the probe and sets the time of the next before
-- the service is asked.
, clock as materialized (
  -- The caller's estimate limits the store's time: a clock that was set forward ends nothing early.
  select least(durable.now, timestamptz 'epoch' + $7::bigint * interval '1 millisecond') as now from durable
),
due as materialized (
  select k.id, s.pause_first_ms, s.pause_cap_ms
    from unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[])
         as s (route, quiet_after_ms, pause_first_ms, pause_cap_ms)
   cross join lateral (
           select u.id
             from oncegate.keys as u
            where u.service = $1::text
              and u.state = 'unknown'
              and u.route = s.route
              -- In a subquery, because an index cannot be searched for a value that changes from row to row.
              and coalesce(u.probe_at, u.settled_at) <= (select clock.now from clock)
              -- Before that, the service could answer "not executed" for a request that is still on its way.
              and u.deadline + s.quiet_after_ms * interval '1 millisecond' <= (select clock.now from clock)
            order by coalesce(u.probe_at, u.settled_at)
            limit $6::bigint
              -- Another reconciler has claimed a locked row.
              for no key update of u skip locked
         ) as k
   limit $6::bigint
)
update oncegate.keys as k
   set probes = coalesce(k.probes, 0) + 1,
       absences = coalesce(k.absences, 0),
       -- Doubled each time, and up to a quarter longer, so that keys that became unknown together are probed apart.
       probe_at = durable.now + interval '1 millisecond' * (1 + random() / 4)
                  * least(due.pause_first_ms * power(2, least(coalesce(k.probes, 0), 30)), due.pause_cap_ms)
  from due
 cross join durable
 where k.id = due.id and k.state = 'unknown' and durable.setting is not null
returning k.id, k.token, k.scope, k.key, k.route, k.path, k.probes, k.absences
