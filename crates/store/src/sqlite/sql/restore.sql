-- restore: writes the whole row of an ended attempt that the file has lost, or whose takeover it has lost.
insert into keys
       ({reservation names}, state, attempt, created_at, reserved_at, deadline, settled_at, expires_at,
        {outcome names}, accepted_at, due_at)
values ({reservation values},
        -- The time when it began is lost. Late is the safe side: an unknown key becomes quiet later than it could.
        :state, :attempt, :now, :now, :now + :time_limit_ms,
        -- A completed record may also have been reaped or purged, and this be its settlement a second time, after an outage.
        -- Then it lives for one more TTL.
        :now, :now + :ttl_ms,
        {outcome values}, :accepted_at, iif(:accepted_at is null, null, :now + :due_ms))
    on conflict (id) do update
   set {attempt excluded}, {outcome excluded}, state = excluded.state, attempt = excluded.attempt,
       reserved_at = excluded.reserved_at, deadline = excluded.deadline, settled_at = excluded.settled_at,
       expires_at = excluded.expires_at, accepted_at = excluded.accepted_at, due_at = excluded.due_at,
       probes = null, absences = null, probe_at = null,
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
