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
  select k.id
    from unnest($1::bytea[]) as wanted (id)
    join oncegate.keys as k on k.id = wanted.id
   order by k.id
     for no key update of k skip locked
),
amended as (
  update oncegate.keys as k
     set state = $8::text,
         -- A response that is taken back was told in time: its attempt ended with it, and cannot end a second time.
         token = case a.seen_state when 'completed' then uuid_send(gen_random_uuid()) else k.token end,
         settled_at = case when $8 = 'unknown' then k.settled_at else durable.now end,
         expires_at = durable.now + a.ttl_ms * interval '1 millisecond',
         remember_ms = a.remember_ms, status = $9::smallint, fields = $10::bytea, body = $11::bytea,
         -- What is to be asked about again is asked about from the beginning.
         probes = case when $8 <> 'unknown' then k.probes end,
         absences = case when $8 <> 'unknown' then k.absences end,
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
  returning k.id, a.seen_state
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
  select durable.now, $7::text, $12::text, $13::text, amended.id, amended.seen_state, $8, $14::text
    from amended
   cross join durable
)
select amended.id, counted.value as purges
  from amended
  left join counted on true
