-- store_request: stores an accepted key's request. Replaces a request that is left over from an earlier life of the
-- key.
insert into outbox (id, since, attempts_before, secret, sealed)
select id, :now, attempt, :secret, :sealed from keys where id = :id
    on conflict (id) do update
   set since = excluded.since, attempts_before = excluded.attempts_before, secret = excluded.secret,
       sealed = excluded.sealed
