\set n random(1, 4611686018427387904)
insert into raw.keys
       (id, service, scope, space, key, route, recipe, fingerprint, instance, token,
        state, attempt, created_at, reserved_at, deadline)
values (sha256(int8send(:n)), 'default', sha256('scope'), 'POST /v1/payments', 'first-0000000000000000', 'default', '1',
        sha256('fingerprint'), 1, '\x000102030405060708090a0b0c0d0e0f',
        'in_flight', 1, extract(epoch from clock_timestamp()) * 1000, extract(epoch from clock_timestamp()) * 1000,
        extract(epoch from clock_timestamp()) * 1000 + 30000);
update raw.keys
   set state = 'completed', settled_at = extract(epoch from clock_timestamp()) * 1000,
       expires_at = extract(epoch from clock_timestamp()) * 1000 + 86400000,
       status = 201, fields = 'content-type: application/json',
       body = '{"amount":1000,"currency":"EUR","customer":"cus_9s6XKzkNRiz8i3","description":"order 1001"}'
 where id = sha256(int8send(:n)) and token = '\x000102030405060708090a0b0c0d0e0f'
   and state not in ('completed', 'expired');
