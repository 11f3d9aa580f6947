-- claim: unknown keys that are due to be asked about. The question counts, and the next has its time, before it is asked.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
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
              and coalesce(u.probe_at, u.settled_at) <= (select clock_timestamp())
              -- Before that, "not executed" could be said of what is still to be executed.
              and u.deadline + s.quiet_after_ms * interval '1 millisecond' <= clock_timestamp()
            order by coalesce(u.probe_at, u.settled_at)
            limit $6::bigint
              -- What another claims is its to ask about.
              for no key update of u skip locked
         ) as k
   limit $6::bigint
)
update oncegate.keys as k
   set probes = coalesce(k.probes, 0) + 1,
       absences = coalesce(k.absences, 0),
       -- Doubled each time, and up to a quarter longer, so that what became unknown together is not asked about together.
       probe_at = durable.now + interval '1 millisecond' * (1 + random() / 4)
                  * least(due.pause_first_ms * power(2, least(coalesce(k.probes, 0), 30)), due.pause_cap_ms)
  from due
 cross join durable
 where k.id = due.id and k.state = 'unknown' and durable.setting is not null
returning k.id, k.token, k.scope, k.key, k.route, k.path, k.probes, k.absences
