-- take_over: the next attempt of a key, if its record is still as it was seen; past its TTL a new life begins.
, available as materialized (
  -- Rows that another transaction has locked are skipped and tried again alone: they must not block the others.
  select k.id
    from unnest($1::bytea[]) as wanted (id)
    join oncegate.keys as k on k.id = wanted.id
   order by k.id
     for no key update of k skip locked
)
update oncegate.keys as k
   set path = a.path, route = a.route, recipe = a.recipe, fingerprint = a.fingerprint, instance = a.instance, token = a.token,
       state = 'in_flight',
       attempt = case when a.past_ttl_at is not null then 1 else k.attempt + 1 end,
       created_at = case when a.past_ttl_at is not null then durable.now else k.created_at end,
       reserved_at = durable.now,
       deadline = durable.now + a.time_limit_ms * interval '1 millisecond',
       settled_at = null, expires_at = null, remember_ms = null, status = null, fields = null, body = null,
       probes = null, absences = null, probe_at = null, accepted_at = null, due_at = null,
       recovery_point = case when a.past_ttl_at is null then k.recovery_point end, cause = null,
       earlier = case when a.past_ttl_at is null
                      then oncegate.with_attempt(k.earlier, k.attempt, k.instance, k.reserved_at,
                                                k.settled_at, k.accepted_at, k.state, k.cause)
                 end
  from unnest($1::bytea[], $2::text[], $3::text[], $4::bytea[], $5::bigint[], $6::bytea[], $7::bigint[],
              $8::bytea[], $9::text[], $10::bigint[], $11::bytea[])
       as a (id, route, recipe, fingerprint, instance, token, time_limit_ms, seen_token, seen_state, past_ttl_at, path)
  join available on available.id = a.id
 cross join durable
 where k.id = a.id
   and k.token = a.seen_token
   and k.state = a.seen_state
   -- Nobody takes over a key that is running or queued, awaits an operator, or has a response within its TTL.
   and k.state not in ('dead', 'in_flight', 'queued')
   and (k.state not in ('completed', 'expired') or a.past_ttl_at is not null)
   -- As of the time when it was seen: nobody has judged a TTL that was written since.
   and (a.past_ttl_at is null
        or k.expires_at + coalesce(k.remember_ms, 0) * interval '1 millisecond'
           <= least(durable.now, timestamptz 'epoch' + a.past_ttl_at * interval '1 millisecond'))
   and durable.setting is not null
returning k.id, k.token, k.attempt, k.recovery_point
