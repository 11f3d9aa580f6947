-- store_request: stores the request of a key. Replaces a request that is left over from an earlier life of the
-- key.
insert into outbox (id, since, attempts_before, secret, sealed)
select id, :now, attempt - iif(:time_limit_ms is null, 0, 1), :secret, :sealed from keys where id = :id
    on conflict (id) do update
   set since = excluded.since, attempts_before = excluded.attempts_before, secret = excluded.secret,
       sealed = excluded.sealed
