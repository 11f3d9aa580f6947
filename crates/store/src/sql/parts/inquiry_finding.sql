-- inquiry_finding: applies a reconciler's verdict to an unknown key. Only a deliverer tries an accepted key again. A
-- response is proof whenever it comes. Any other verdict counts only as the answer to the last inquiry.
update oncegate.keys as k
   set state = case when :state = 'retryable' and k.accepted_at is not null then 'queued' else :state end,
       absences = coalesce(:absences, k.absences),
       settled_at = case when :state = 'unknown' then k.settled_at else :now end,
       expires_at = case when :state <> 'retryable' or k.accepted_at is null then :now + :ttl_ms end,
       due_at = case when :state = 'retryable' and k.accepted_at is not null then :now
                     when :state = 'unknown' then k.due_at end,
       {response assignments}
 where k.id = :id
   and k.token = :token
   and k.state = 'unknown'
   and (:state = 'completed' or k.inquiries = :inquiry)
