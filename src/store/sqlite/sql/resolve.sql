-- resolve: what came of asking about an unknown key.
update keys
   set state = :state, absences = coalesce(:absences, absences),
       settled_at = iif(:state = 'unknown', settled_at, :now),
       expires_at = :now + :ttl_ms, remember_ms = :remember_ms, status = :status, fields = :fields, body = :body
 where id = :id
   and token = :token
   and state = 'unknown'
   -- A response is proof whenever it comes. Anything else counts only as the answer to the last question.
   and (:state = 'completed' or probes = :probe)
returning service, state
