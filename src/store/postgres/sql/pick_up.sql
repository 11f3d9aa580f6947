-- pick_up: starts attempts for due deliveries, each under its own token; marks keys dead that are past their limits.
, clock as materialized (
  -- The caller's estimate limits the store's time: a clock that was set forward ends nothing early.
  select least(durable.now, timestamptz 'epoch' + $16::bigint * interval '1 millisecond') as now from durable
),
policies as materialized (
  select *
    from unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::integer[], $7::bigint[], $15::bigint[])
         as a (route, on_unknown, quiet_after_ms, time_limit_ms, max_attempts, give_up_after_ms, slots)
),
queued_due as materialized (
  select due.id, due.token as taken_from, due.state, due.attempt, due.due_at as since, a.route, a.slots, a.time_limit_ms, a.max_attempts, a.give_up_after_ms
    from policies as a
   cross join lateral (
           select k.id, k.token, k.state, k.attempt, k.due_at
             from oncegate.keys as k
            where k.service = $1::text
              and k.state = 'queued'
              and k.route = a.route
              -- In a subquery, because an index cannot be searched for a value that changes from row to row.
              and k.due_at <= (select clock.now from clock)
              -- Attempts that ended on this instance and are not stored yet: a new token would fence their settlement.
              and k.id <> all ($12::bytea[])
            order by k.due_at
            limit a.slots
              -- Another deliverer has picked up a locked row.
              for no key update of k skip locked
         ) as due
   limit $8::bigint
),
unknown_due as materialized (
  select due.id, due.token as taken_from, due.state, due.attempt, due.since, a.route, a.slots, a.time_limit_ms, a.max_attempts, a.give_up_after_ms
    from policies as a
   cross join lateral (
           select k.id, k.token, k.state, k.attempt, coalesce(k.due_at, k.settled_at) as since
             from oncegate.keys as k
            where k.service = $1
              and k.state = 'unknown'
              and k.route = a.route
              and k.accepted_at is not null
              and k.id <> all ($12)
              and coalesce(k.due_at, k.settled_at) <= (select clock.now from clock)
              -- Its last attempt cannot be running any more, unless the route accepts that. The column stands alone, so
              -- that the index is searched for it.
              and k.deadline <= case a.on_unknown
                                  when 'retry' then 'infinity'
                                  else (select clock.now from clock) - a.quiet_after_ms * interval '1 millisecond'
                                end
            order by coalesce(k.due_at, k.settled_at)
            limit a.slots
              for no key update of k skip locked
         ) as due
   where a.on_unknown <> 'hold'
   limit $8
),
candidates as materialized (
  select d.*, o.secret, o.sealed,
         d.attempt - o.attempts_before as spent,
         o.since + d.give_up_after_ms * interval '1 millisecond' as give_up_at,
         case when o.id is null then 'its request is not in the store any more'
              when d.attempt - o.attempts_before >= d.max_attempts
                then format('tried %s times', d.attempt - o.attempts_before)
              when o.since + d.give_up_after_ms * interval '1 millisecond' <= clock.now
                then format('not delivered in time, after %s attempts', d.attempt - o.attempts_before)
         end as note
    -- The longest due first, so that queued keys do not starve unknown ones.
    from (select * from queued_due union all select * from unknown_due order by since limit $8) as d
    left join oncegate.outbox as o on o.id = d.id
   cross join clock
),
assigned as materialized (
  select c.*, t.token
    from (select r.*, row_number() over (order by r.since) as place
            from (select candidates.*,
                         row_number() over (partition by candidates.route order by candidates.since) as slot
                    from candidates
                   where candidates.note is null) as r
           where r.slot <= r.slots) as c
    join unnest($9::bytea[]) with ordinality as t (token, place) on t.place = c.place
),
started as (
  update oncegate.keys as k
     set state = 'in_flight', attempt = k.attempt + 1, token = d.token, instance = $10::bigint,
         reserved_at = durable.now, deadline = durable.now + d.time_limit_ms * interval '1 millisecond',
         settled_at = null, due_at = null, probes = null, absences = null, probe_at = null, cause = null,
         earlier = oncegate.with_attempt(k.earlier, k.attempt, k.instance, k.reserved_at,
                                         k.settled_at, k.accepted_at, k.state, k.cause)
    from assigned as d
   cross join durable
   where k.id = d.id and k.state = d.state and durable.setting is not null
  returning k.id, k.token, d.taken_from, k.scope, k.space, k.key, k.path, k.route, k.recipe, k.fingerprint, k.attempt,
            k.recovery_point, k.accepted_at, d.spent, d.give_up_at, d.secret, d.sealed
),
given_up as (
  update oncegate.keys as k
     set state = 'dead', settled_at = durable.now, due_at = case c.state when 'queued' then durable.now end
    from candidates as c
   cross join durable
   where k.id = c.id and k.state = c.state and c.note is not null and durable.setting is not null
  returning k.id, k.service, k.route, k.attempt, c.state as was, c.note
),
audited as (
  insert into oncegate.audit (at, service, actor, action, id, before, after, note)
  select durable.now, g.service, 'delivery', 'give_up', g.id, g.was, 'dead', g.note
    from given_up as g
   cross join durable
),
discounted as (
  -- Attempts under which nothing was sent do not count, while they are the newest.
  update oncegate.outbox as o
     set attempts_before = o.attempts_before + 1
    from unnest($13::bytea[], $14::bytea[]) as u (id, token)
    join oncegate.keys as k on k.id = u.id and k.token = u.token
   where o.id = u.id and o.attempts_before < k.attempt
),
requests_deleted as (
  -- A delivered request is not needed any more.
  delete from oncegate.outbox as o
   using unnest($11::bytea[]) as d (id)
    join oncegate.keys as k on k.id = d.id
   where o.id = d.id and k.state in ('completed', 'expired')
     -- Spares the request of a later life, if the key is accepted anew at this moment.
     and o.since <= k.settled_at
)
select t.id, t.token, t.taken_from, t.scope, t.space, t.key, t.path, t.route, t.recipe, t.fingerprint, t.attempt, t.recovery_point,
       (date_part('epoch', t.accepted_at) * 1000)::bigint as accepted_at_ms,
       t.spent, (date_part('epoch', t.give_up_at - durable.now) * 1000)::bigint as give_up_in_ms,
       t.secret, t.sealed, null::text as note
  from started as t
 cross join durable
 union all
select g.id, null, null, null, null, null, null, g.route, null, null, g.attempt, null, null, null, null, null, null, g.note
  from given_up as g
