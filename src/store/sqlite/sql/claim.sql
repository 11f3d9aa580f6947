-- claim: unknown keys that are due to be asked about. The question counts, and the next has its time, before it is asked.
update keys
   set probes = coalesce(probes, 0) + 1,
       absences = coalesce(absences, 0),
       -- Doubled each time, and up to a quarter longer, so that what became unknown together is not asked about together.
       probe_at = :now + min(:pause_first_ms * (1 << min(coalesce(probes, 0), 20)), :pause_cap_ms)
                       * (1000 + abs(random() % 250)) / 1000
 where id in (
         select id
           from keys
          where service = :service
            and state = 'unknown'
            and route = :route
            -- Before that, "not executed" could be said of what is still to be executed.
            and deadline + :quiet_after_ms <= :now
            and coalesce(probe_at, settled_at) <= :now
          order by coalesce(probe_at, settled_at)
          limit :limit)
returning id, token, scope, key, route, path, probes, absences
