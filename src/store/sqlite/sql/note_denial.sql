-- note_denial: a service says that its attempt was not executed, which is still in flight: see heed.
insert into denials (id, token, ttl_ms)
values (:id, :token, :ttl_ms)
    on conflict (id) do update set token = excluded.token, ttl_ms = excluded.ttl_ms
