-- restore: writes the whole row of an ended attempt that the file has lost.
insert into keys
       (id, service, scope, space, key, path, route, recipe, fingerprint, instance, token,
        state, attempt, created_at, reserved_at, deadline, settled_at, expires_at, remember_ms, status, fields, body,
        accepted_at)
values (:id, :service, :scope, :space, :key, :path, :route, :recipe, :fingerprint, :instance, :token,
        -- The time when it began is lost. Late is the safe side: an unknown key becomes quiet later than it could.
        :state, :attempt, :now, :now, :now + :time_limit_ms,
        -- A completed record may also have been reaped or purged, and this be its settlement a second time. Then
        -- it lives for one more TTL and no longer, as nobody settles for longer than that.
        :now, :now + :ttl_ms, :remember_ms, :status, :fields, :body,
        :accepted_at)
returning expires_at
