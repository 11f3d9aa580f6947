-- purge: forgets keys, where they are still as they were seen; the lines about it, and the count that grows with it.
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
     for update of k skip locked
),
purged as (
  delete from oncegate.keys as k
   using unnest($1::bytea[], $2::bytea[], $3::text[]) as a (id, token, seen_state)
    join free on free.id = a.id
   cross join durable
   where k.id = a.id
     and k.service = $4::text
     and k.token = a.token
     and k.state = a.seen_state
     and k.state <> 'in_flight'
     and durable.setting is not null
  returning k.id, a.seen_state
),
shredded as (
  delete from oncegate.outbox as o using purged where o.id = purged.id
),
counted as (
  update oncegate.counters as c
     set value = c.value + 1
   where c.name = 'purges' and exists (select from purged)
  returning c.value
),
noted as (
  insert into oncegate.audit (at, service, actor, action, id, before, after, note)
  select durable.now, $4::text, $5::text, $6::text, purged.id, purged.seen_state, 'none', $7::text
    from purged
   cross join durable
)
select purged.id, counted.value as purges
  from purged
 cross join counted
