-- restore: writes the whole row of an ended attempt that the file has lost, or whose takeover it has lost.
insert into keys
       (id, service, scope, space, key, path, route, recipe, fingerprint, instance, token,
        state, attempt, created_at, reserved_at, deadline, settled_at, expires_at, remember_ms, status, fields, body,
        accepted_at, cause, holder, due_at)
values (:id, :service, :scope, :space, :key, :path, :route, :recipe, :fingerprint, :instance, :token,
        -- The time when it began is lost. Late is the safe side: an unknown key becomes quiet later than it could.
        :state, :attempt, :now, :now, :now + :time_limit_ms,
        -- A completed record may also have been reaped or purged, and this be its settlement a second time, after an outage.
        -- Then it lives for one more TTL.
        :now, :now + :ttl_ms, :remember_ms, :status, :fields, :body,
        :accepted_at, :cause, :holder, iif(:accepted_at is null, null, :now + :due_ms))
    on conflict (id) do update
   set path = excluded.path, route = excluded.route, recipe = excluded.recipe, fingerprint = excluded.fingerprint,
       instance = excluded.instance, token = excluded.token, state = excluded.state, attempt = excluded.attempt,
       reserved_at = excluded.reserved_at, deadline = excluded.deadline, settled_at = excluded.settled_at,
       expires_at = excluded.expires_at, remember_ms = excluded.remember_ms, status = excluded.status,
       fields = excluded.fields, body = excluded.body, cause = excluded.cause, probes = null, absences = null, probe_at = null,
       accepted_at = excluded.accepted_at, due_at = excluded.due_at,
       created_at = iif(keys.attempt < excluded.attempt, keys.created_at, excluded.created_at),
       recovery_point = iif(keys.attempt < excluded.attempt, keys.recovery_point, null),
       earlier = iif(keys.attempt < excluded.attempt, keys.earlier, null)
 -- Only the row that the takeover had replaced: each attempt replaces the token, so none has begun since.
 where keys.token = :replaced_token
   -- A row that was completed only since it was lost keeps its response.
   and (:replaced_was_completed or keys.state not in ('completed', 'expired'))
   -- One that was given up since counts as any other that is dead: a response settles it.
   and (keys.state <> 'dead' or excluded.state = 'completed')
returning expires_at
