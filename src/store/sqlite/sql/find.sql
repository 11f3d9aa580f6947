-- find: a record by its id.
select id, attempt, token, recipe, fingerprint, state,
       :now - reserved_at as running_ms,
       deadline - :now as deadline_in_ms,
       -- Past its TTL and forgotten, or past it and remembered to refuse late retries.
       coalesce(expires_at + coalesce(remember_ms, 0) <= :now, 0) as past_ttl,
       state = 'expired' or (remember_ms is not null and expires_at <= :now) as late,
       :now as now_ms,
       :now - settled_at as settled_ms,
       expires_at as expires_at_ms,
       accepted_at as accepted_at_ms,
       recovery_point, status, fields, body
  from keys
 where id = :id
