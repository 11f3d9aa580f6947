-- find: a record by its id.
select id, attempt, token, recipe, fingerprint, state, reserved_at, deadline, settled_at, expires_at, remember_ms,
       accepted_at, recovery_point, cause, inquire_at, status, fields, body
  from keys
 where id = :id
