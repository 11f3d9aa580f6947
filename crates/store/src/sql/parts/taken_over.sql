-- taken_over: the columns of a key that the next request has taken over. Past its TTL a new life begins.
{attempt assignments},
created_at = case when :past_ttl_at is null then k.created_at else :now end,
reserved_at = :now,
{outcome resets}, inquiries = null, absences = null, inquire_at = null, expires_at = null,
recovery_point = case when :past_ttl_at is null then k.recovery_point end,
earlier = case when :past_ttl_at is null then {with_attempt} end
