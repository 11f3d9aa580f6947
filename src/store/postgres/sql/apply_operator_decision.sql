-- apply_operator_decision: applies an operator's decision to keys that are still as they were seen, with its audit entries.
, available as materialized (
  -- Rows that another transaction has locked are skipped and reported: they must not block the others.
  select k.id,
         -- Only a deliverer tries an accepted key again; a release gives it to the next request.
         case when k.accepted_at is null or $13::text = 'release' then $8::text
              when $8 = 'retryable' or ($13 = 'requeue' and k.due_at is not null) then 'queued'
              else $8 end as state
    from unnest($1::bytea[]) as wanted (id)
    join oncegate.keys as k on k.id = wanted.id
   order by k.id
     for no key update of k skip locked
),
changed as (
  update oncegate.keys as k
     set state = available.state,
         -- A withdrawn response had ended its attempt. A new token keeps that attempt from ending a second time.
         token = case a.seen_state when 'completed' then uuid_send(gen_random_uuid()) else k.token end,
         settled_at = case when available.state = 'unknown' then k.settled_at else durable.now end,
         expires_at = case when available.state <> 'queued' then durable.now + a.ttl_ms * interval '1 millisecond' end,
         -- A release starts the operation from the beginning.
         recovery_point = case when $13 <> 'release' then k.recovery_point end,
         accepted_at = case when $13 <> 'release' then k.accepted_at end,
         attempt = case when $13 <> 'release' then k.attempt else greatest(k.attempt, 1) end,
         due_at = case available.state when 'queued' then durable.now end,
         remember_ms = a.remember_ms, status = $9::smallint, fields = $10::bytea, body = $11::bytea,
         -- A key that is to be probed again is probed from the first probe on.
         probes = case when available.state not in ('queued', 'unknown') then k.probes end,
         absences = case when available.state not in ('queued', 'unknown') then k.absences end,
         probe_at = null
    from unnest($1::bytea[], $2::bytea[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $14::text[])
         as a (id, token, seen_state, ttl_ms, remember_ms, quiet_after_ms, note)
    join available on available.id = a.id
   cross join durable
   where k.id = a.id
     and k.service = $7::text
     and k.token = a.token
     and k.state = a.seen_state
     and (a.quiet_after_ms is null or k.deadline + a.quiet_after_ms * interval '1 millisecond'
          -- The caller's estimate limits the store's time. It has none where nobody has watched the clock.
          <= least(durable.now, timestamptz 'epoch' + $15::bigint * interval '1 millisecond'))
     and durable.setting is not null
  returning k.id, a.seen_state, k.state, k.attempt, a.note
),
budget_reset as (
  -- It has all its attempts and its time again.
  update oncegate.outbox as o
     set since = durable.now, attempts_before = changed.attempt
    from changed
   cross join durable
   where o.id = changed.id and changed.state in ('queued', 'unknown')
),
requests_deleted as (
  delete from oncegate.outbox as o
   using changed
   where o.id = changed.id and changed.state not in ('queued', 'unknown')
),
purge_counted as (
  -- No instance may replay a withdrawn response, as after a purge.
  update oncegate.counters as c
     set value = c.value + 1
   where c.name = 'purges' and exists (select from changed where changed.seen_state = 'completed')
  returning c.value
),
audited as (
  insert into oncegate.audit (at, service, actor, action, id, before, after, note)
  select durable.now, $7::text, $12::text, $13::text, changed.id, changed.seen_state, changed.state, changed.note
    from changed
   cross join durable
)
select changed.id, purge_counted.value as purges, changed.state = 'queued' as queued
  from changed
  left join purge_counted on true
