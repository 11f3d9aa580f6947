-- start_delivery: a due delivery becomes an attempt.
update keys
   set state = 'in_flight', attempt = attempt + 1, token = :token, instance = :instance,
       reserved_at = :now, deadline = :now + :time_limit_ms,
       settled_at = null, due_at = iif(accepted_at is null, min(due_at, :now - 1), null), {outcome resets}, inquiries = null, absences = null, inquire_at = null, expires_at = null,
       earlier = {with_attempt}
 where id = :id and state in ('queued', 'unknown')
returning scope, space, key, path, recipe, fingerprint, parts, attempt, recovery_point, accepted_at,
          attempt - 1 - (select o.attempts_before from outbox as o where o.id = keys.id) as spent,
          (select o.since from outbox as o where o.id = keys.id) + :give_up_after_ms - :as_of as give_up_in_ms,
          (select o.secret from outbox as o where o.id = keys.id) as secret,
          (select o.sealed from outbox as o where o.id = keys.id) as sealed
