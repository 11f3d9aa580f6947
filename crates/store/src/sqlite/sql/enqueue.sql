-- enqueue: reserves a key without a record, or accepts it where its attempt has no time limit. Where nothing is
-- inserted, find returns who has it.
insert into keys
       ({reservation names}, state, attempt, created_at, reserved_at, deadline, settled_at, accepted_at, due_at)
values ({reservation values}, iif(:time_limit_ms is null, 'queued', 'in_flight'), iif(:time_limit_ms is null, 0, 1),
        :now, :now, :now + coalesce(:time_limit_ms, 0), iif(:time_limit_ms is null, :now, null),
        iif(:time_limit_ms is null, :now, null), :now)
    on conflict (id) do nothing
returning attempt, recovery_point
