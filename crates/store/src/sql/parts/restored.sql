-- restored: the whole row of an ended attempt that the store has lost, or whose takeover it has lost. The time when it
-- began is lost. Late is the safe side: an unknown key becomes quiet later than it could. A completed record may also
-- have been reaped or purged, and this be its settlement a second time, after an outage. Then it lives for one more
-- TTL.
insert into oncegate.keys as k
       ({reservation names}, attempt, created_at, reserved_at, deadline, state, settled_at, expires_at, {outcome names},
        accepted_at, due_at)
values ({reservation values}, :attempt, :now, :now, :now + :time_limit_ms, :state, :now, :now + :ttl_ms, {outcome values},
        :accepted_at, case when :accepted_at is not null then :now + :due_ms end)
    on conflict (id) do update
   set {attempt excluded}, {outcome excluded}, state = excluded.state, attempt = excluded.attempt,
       reserved_at = excluded.reserved_at, deadline = excluded.deadline, settled_at = excluded.settled_at,
       expires_at = excluded.expires_at, accepted_at = excluded.accepted_at, due_at = excluded.due_at,
       inquiries = null, absences = null, inquire_at = null,
       created_at = case when k.attempt < excluded.attempt then k.created_at else excluded.created_at end,
       recovery_point = case when k.attempt < excluded.attempt then k.recovery_point end,
       earlier = case when k.attempt < excluded.attempt then k.earlier end
 -- Only the row that the takeover had replaced: each attempt replaces the token, so none has begun since.
 where k.token = :replaced_token
   -- A row that was completed only since it was lost keeps its response.
   and (:replaced_was_completed or k.state not in ('completed', 'expired'))
   -- One that was given up since counts as any other that is dead: a response settles it.
   and (k.state <> 'dead' or excluded.state = 'completed')
