-- report_not_executed: services report that their attempts were not executed. While an attempt is in flight its report
-- is only stored: see apply_deferred_reports.
, reports as materialized (
  select r.id, r.token, r.service, r.ttl_ms
    from unnest($1::bytea[], $2::bytea[], $3::text[], $4::bigint[]) as r (id, token, service, ttl_ms)
),
available as materialized (
  -- A row that another transaction has locked is reported: it must not block the others.
  select k.id, k.token, k.service, k.state, reports.ttl_ms
    from reports
    join oncegate.keys as k on k.id = reports.id and k.token = reports.token and k.service = reports.service
   order by k.id
     for no key update of k skip locked
),
released as (
  update oncegate.keys as k
     -- Only a deliverer tries an accepted key again.
     set state = case when k.accepted_at is null then 'retryable' else 'queued' end, settled_at = durable.now,
         expires_at = case when k.accepted_at is null
                           then durable.now + available.ttl_ms * interval '1 millisecond' end,
         due_at = case when k.accepted_at is not null then durable.now end
    from available
   cross join durable
   where k.id = available.id and available.state in ('dead', 'unknown') and durable.setting is not null
  returning k.id, k.service, available.state as before, k.state as after
),
deferred as (
  insert into oncegate.denials as d (id, token, ttl_ms)
  select available.id, available.token, available.ttl_ms
    from available
   cross join durable
   where available.state = 'in_flight' and durable.setting is not null
   order by available.id
      on conflict (id) do update set token = excluded.token, ttl_ms = excluded.ttl_ms
),
audited as (
  insert into oncegate.audit (at, service, actor, action, id, before, after)
  select durable.now, r.service, 'service', 'not_executed', r.id, r.before, r.after
    from released as r
   cross join durable
)
select k.id, coalesce(available.state, k.state) as state, available.id is null as held
  from reports
  join oncegate.keys as k on k.id = reports.id and k.token = reports.token and k.service = reports.service
  left join available on available.id = k.id
