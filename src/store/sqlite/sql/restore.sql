-- restore: the whole row of an attempt that has ended, where the file has lost it.
insert into keys
       (id, service, scope, space, key, path, route, recipe, fingerprint, instance, token,
        state, attempt, created_at, reserved_at, deadline, settled_at, expires_at, remember_ms, status, fields, body,
        accepted_at)
values (:id, :service, :scope, :space, :key, :path, :route, :recipe, :fingerprint, :instance, :token,
        -- When it began is lost. Late is the safe side: what is unknown becomes quiet later than it might.
        :state, :attempt, :now, :now, :now + :time_limit_ms,
        -- A completed record may also have been reaped, or purged by hand, and this be its settlement a second time: then
        -- it lives for one more TTL, and no longer, as nobody settles for longer than that.
        :now, :now + :ttl_ms, :remember_ms, :status, :fields, :body,
        :accepted_at)
returning expires_at
