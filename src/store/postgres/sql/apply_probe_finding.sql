-- apply_probe_finding: applies a reconciler's verdict to an unknown key, with the reason in the audit log.
, available as materialized (
  -- A row that another transaction has locked is left to it.
  select k.id,
         -- Only a deliverer tries an accepted key again.
         case when $4::text = 'retryable' and k.accepted_at is not null then 'queued' else $4 end as state
    from oncegate.keys as k
   where k.id = $1::bytea
     for no key update of k skip locked
),
resolved as (
  update oncegate.keys as k
     set state = available.state, absences = coalesce($5::integer, k.absences),
         settled_at = case $4::text when 'unknown' then k.settled_at else durable.now end,
         expires_at = case when available.state <> 'queued'
                           then durable.now + $6::bigint * interval '1 millisecond' end,
         due_at = case available.state when 'queued' then durable.now when 'unknown' then k.due_at end,
         remember_ms = $7::bigint, status = $8::smallint, fields = $9::bytea, body = $10::bytea
    from available
   cross join durable
   where k.id = available.id
     and k.token = $2::bytea
     and k.state = 'unknown'
     -- A response is proof whenever it comes. Any other verdict counts only as the answer to the last probe.
     and ($4::text = 'completed' or k.probes = $3::integer)
     and durable.setting is not null
  returning k.id, k.service, k.state
),
requests_deleted as (
  delete from oncegate.outbox as o using resolved as r where o.id = r.id and r.state = 'completed'
),
audited as (
  insert into oncegate.audit (at, service, actor, action, id, before, after, note)
  select durable.now, r.service, 'reconciler', $11::text, r.id, 'unknown', r.state, $12::text
    from resolved as r
   cross join durable
   where r.state <> 'unknown'
)
select r.state from resolved as r
