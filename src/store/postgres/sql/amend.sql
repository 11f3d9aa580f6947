-- amend: what somebody decided about keys, where they are still as they were seen, and the lines about it.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
),
free as materialized (
  -- What somebody's open transaction holds is left out here, and told: it must not hold up the others.
  select k.id,
         -- What was accepted is for us to try again, and for nobody else; a release gives it to the next request.
         case when k.accepted_at is null or $13::text = 'release' then $8::text
              when $8 = 'retryable' or ($13 = 'requeue' and k.due_at is not null) then 'queued'
              else $8 end as state
    from unnest($1::bytea[]) as wanted (id)
    join oncegate.keys as k on k.id = wanted.id
   order by k.id
     for no key update of k skip locked
),
amended as (
  update oncegate.keys as k
     set state = free.state,
         -- A response that is taken back was told in time: its attempt ended with it, and cannot end a second time.
         token = case a.seen_state when 'completed' then uuid_send(gen_random_uuid()) else k.token end,
         settled_at = case when free.state = 'unknown' then k.settled_at else durable.now end,
         expires_at = case when free.state <> 'queued' then durable.now + a.ttl_ms * interval '1 millisecond' end,
         -- Whoever takes a response back wants all of it again.
         recovery_point = case when $13 <> 'release' then k.recovery_point end,
         accepted_at = case when $13 <> 'release' then k.accepted_at end,
         attempt = case when $13 <> 'release' then k.attempt else greatest(k.attempt, 1) end,
         due_at = case free.state when 'queued' then durable.now end,
         remember_ms = a.remember_ms, status = $9::smallint, fields = $10::bytea, body = $11::bytea,
         -- What is to be asked about again is asked about from the beginning.
         probes = case when free.state not in ('queued', 'unknown') then k.probes end,
         absences = case when free.state not in ('queued', 'unknown') then k.absences end,
         probe_at = null
    from unnest($1::bytea[], $2::bytea[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[])
         as a (id, token, seen_state, ttl_ms, remember_ms, quiet_after_ms)
    join free on free.id = a.id
   cross join durable
   where k.id = a.id
     and k.service = $7::text
     and k.token = a.token
     and k.state = a.seen_state
     and (a.quiet_after_ms is null or k.deadline + a.quiet_after_ms * interval '1 millisecond' <= durable.now)
     and durable.setting is not null
  returning k.id, a.seen_state, k.state, k.attempt
),
renewed as (
  -- It has all its attempts and its time again.
  update oncegate.outbox as o
     set since = durable.now, attempts_before = amended.attempt
    from amended
   cross join durable
   where o.id = amended.id and amended.state in ('queued', 'unknown')
),
shredded as (
  delete from oncegate.outbox as o
   using amended
   where o.id = amended.id and amended.state not in ('queued', 'unknown')
),
counted as (
  -- A response that was taken back is to be told by nobody any more, as one that was purged.
  update oncegate.counters as c
     set value = c.value + 1
   where c.name = 'purges' and exists (select from amended where amended.seen_state = 'completed')
  returning c.value
),
noted as (
  insert into oncegate.audit (at, service, actor, action, id, before, after, note)
  select durable.now, $7::text, $12::text, $13::text, amended.id, amended.seen_state, amended.state, $14::text
    from amended
   cross join durable
)
select amended.id, counted.value as purges, amended.state = 'queued' as queued
  from amended
  left join counted on true
