-- may_take_over: whether the next request may have a key, whose record must be as it was seen. Nobody takes over a key
-- that is running or queued, awaits an operator, or has a response within its TTL. The TTL has passed as of the time
-- when it was seen: nobody has judged one that was written since. A redelivery does not wait for the end of the time for
-- which a key is remembered past its TTL.
k.id = :id
and k.token = :seen_token
and k.state = :seen_state
and k.state not in ('dead', 'in_flight', 'queued')
and (k.state not in ('completed', 'expired') or :past_ttl_at is not null)
and (:past_ttl_at is null
     or (:redelivered and k.state = 'expired')
     or k.expires_at + case when :redelivered then 0 else coalesce(k.remember_ms, 0) end
        <= case when :past_ttl_at < :now then :past_ttl_at else :now end)
