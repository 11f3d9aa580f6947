-- outbox: the request of a key that was accepted; one that is left over from a life of the key that is past goes.
insert into outbox (id, since, attempts_before, secret, sealed)
select id, :now, attempt, :secret, :sealed from keys where id = :id
    on conflict (id) do update
   set since = excluded.since, attempts_before = excluded.attempts_before, secret = excluded.secret,
       sealed = excluded.sealed
