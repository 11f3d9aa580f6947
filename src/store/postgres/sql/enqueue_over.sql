-- enqueue_over: enqueue for a key that has a record, if it is still as it was seen; past its TTL a new life begins.
, available as materialized (
  -- A row that another transaction has locked is tried again.
  select k.id from oncegate.keys as k where k.id = $1::bytea for no key update of k skip locked
),
queued as (
  update oncegate.keys as k
     set path = $2::bytea, route = $3::text, recipe = $4::text, fingerprint = $5::bytea, instance = $6::bigint,
         token = $7::bytea, state = 'queued',
         attempt = case when $10::bigint is null then k.attempt else 0 end,
         created_at = case when $10::bigint is null then k.created_at else durable.now end,
         reserved_at = durable.now, deadline = durable.now, settled_at = durable.now, accepted_at = durable.now,
         due_at = durable.now,
         expires_at = null, remember_ms = null, status = null, fields = null, body = null,
         probes = null, absences = null, probe_at = null,
         recovery_point = case when $10::bigint is null then k.recovery_point end, cause = null,
         earlier = case when $10::bigint is null
                        then oncegate.with_attempt(k.earlier, k.attempt, k.instance, k.reserved_at,
                                                  k.settled_at, k.accepted_at, k.state, k.cause)
                   end
    from available
   cross join durable
   where k.id = available.id
     and k.token = $8::bytea
     and k.state = $9::text
     -- Nobody takes over a key that is running or queued, awaits an operator, or has a response within its TTL.
     and k.state not in ('dead', 'in_flight', 'queued')
     and (k.state not in ('completed', 'expired') or $10::bigint is not null)
     -- As of the time when it was seen: nobody has judged a TTL that was written since.
     and ($10::bigint is null
          or k.expires_at + coalesce(k.remember_ms, 0) * interval '1 millisecond'
             <= least(durable.now, timestamptz 'epoch' + $10::bigint * interval '1 millisecond'))
     and durable.setting is not null
  returning k.id, k.attempt
)
insert into oncegate.outbox as o (id, since, attempts_before, secret, sealed)
select queued.id, durable.now, queued.attempt, $11::text, $12::bytea
  from queued
 cross join durable
    -- A request that is left over from an earlier life of the key.
    on conflict (id) do update
   set since = excluded.since, attempts_before = excluded.attempts_before, secret = excluded.secret,
       sealed = excluded.sealed
returning o.id
