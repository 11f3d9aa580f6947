-- start_delivery: a due delivery becomes an attempt.
update keys
   set state = 'in_flight', attempt = attempt + 1, token = :token, instance = :instance,
       reserved_at = :now, deadline = :now + :time_limit_ms,
       settled_at = null, due_at = null, probes = null, absences = null, probe_at = null
 where id = :id and state in ('queued', 'unknown')
returning id, scope, space, key, path, route, recipe, fingerprint, attempt, recovery_point, accepted_at,
          (select o.secret from outbox as o where o.id = keys.id) as secret,
          (select o.sealed from outbox as o where o.id = keys.id) as sealed
