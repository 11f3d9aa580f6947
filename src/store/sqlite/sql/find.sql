-- find: a record by its id.
select id, attempt, token, recipe, fingerprint, state,
       :now - reserved_at as running_ms,
       deadline - :now as deadline_in_ms,
       coalesce(expires_at <= :now, 0) as past_ttl,
       expires_at as expires_at_ms,
       status, fields, body
  from keys
 where id = :id
