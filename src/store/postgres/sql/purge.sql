-- purge: deletes keys that are still as they were seen, writes their audit entries, and increments the purge count.
, available as materialized (
  -- Rows that another transaction has locked are skipped and reported: they must not block the others.
  select k.id
    from unnest($1::bytea[]) as wanted (id)
    join oncegate.keys as k on k.id = wanted.id
   order by k.id
     for update of k skip locked
),
purged as (
  delete from oncegate.keys as k
   using unnest($1::bytea[], $2::bytea[], $3::text[]) as a (id, token, seen_state)
    join available on available.id = a.id
   cross join durable
   where k.id = a.id
     and k.service = $4::text
     and k.token = a.token
     and k.state = a.seen_state
     and k.state <> 'in_flight'
     and durable.setting is not null
  returning k.id, a.seen_state
),
requests_deleted as (
  delete from oncegate.outbox as o using purged where o.id = purged.id
),
purge_counted as (
  update oncegate.counters as c
     set value = c.value + 1
   where c.name = 'purges' and exists (select from purged)
  returning c.value
),
audited as (
  insert into oncegate.audit (at, service, actor, action, id, before, after, note)
  select durable.now, $4::text, $5::text, $6::text, purged.id, purged.seen_state, 'none', $7::text
    from purged
   cross join durable
)
select purged.id, purge_counted.value as purges
  from purged
 cross join purge_counted
