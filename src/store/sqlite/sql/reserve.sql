-- reserve: reserves a key without a record. Where nothing is inserted, find returns who has it.
insert into keys
       (id, service, scope, space, key, path, route, recipe, fingerprint, instance, token, holder,
        state, attempt, created_at, reserved_at, deadline)
values (:id, :service, :scope, :space, :key, :path, :route, :recipe, :fingerprint, :instance, :token, :holder,
        'in_flight', 1, :now, :now, :now + :time_limit_ms)
    on conflict (id) do nothing
