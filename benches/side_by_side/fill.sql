-- Completed keys as after a day of traffic: random ids, all settled, expiring in the order of their creation.
insert into oncegate.keys
       (id, service, scope, space, key, route, recipe, fingerprint, instance, token,
        state, attempt, created_at, reserved_at, deadline, settled_at, expires_at, status, fields, body)
select sha256(int8send(n)), 'default', sha256('scope'), 'POST /v1/payments', int8send(n), 'default', '1',
       sha256('fingerprint'), 1, substring(sha256(int8send(n)) for 16),
       'completed', 1, made.at, made.at, made.at + 30000, made.at, made.at + 86400000, 201,
       convert_to(E'content-type: application/json\r\n\r\n', 'UTF8'),
       '{"amount":1000,"currency":"EUR","customer":"cus_9s6XKzkNRiz8i3","description":"order 1001"}'
  from generate_series(1, $1::bigint) as n,
       lateral (select (extract(epoch from now()) * 1000)::bigint - ($1 - n) * 72000000 / $1 as at) as made
