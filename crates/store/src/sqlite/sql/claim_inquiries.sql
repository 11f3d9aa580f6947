-- claim_inquiries: claims unknown keys that are due for an inquiry. Counts the inquiry and sets the time of the next before
-- the service is asked.
update keys
   set inquiries = coalesce(inquiries, 0) + 1,
       absences = coalesce(absences, 0),
       -- Doubled each time, and up to a quarter longer, so that keys that became unknown together are asked about apart.
       inquire_at = :now + min(:pause_first_ms * (1 << min(coalesce(inquiries, 0), 20)), :pause_cap_ms)
                       * (1000 + (:spread + 101 * rowid) % 250) / 1000
 where id in (
         select id
           from keys
          where service = :service
            and state = 'unknown'
            and route = :route
            -- Before that, the service could answer "not executed" for a request that is still on its way.
            and deadline + :quiet_after_ms <= :as_of
            and coalesce(inquire_at, settled_at) <= :as_of
          order by coalesce(inquire_at, settled_at)
          limit :limit)
returning id, token, scope, key, route, path, inquiries, absences, settled_at
