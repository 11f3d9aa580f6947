-- report_not_executed: a service reports that its attempt was not executed. While the attempt is in flight the report
-- is only stored: see apply_deferred_reports.
, available as materialized (
  -- A row that another transaction has locked is reported: it must not block this connection.
  select k.id, k.token, k.state
    from oncegate.keys as k
   where k.id = $1::bytea and k.token = $2::bytea and k.service = $3::text
     for no key update of k skip locked
),
released as (
  update oncegate.keys as k
     -- Only a deliverer tries an accepted key again.
     set state = case when k.accepted_at is null then 'retryable' else 'queued' end, settled_at = durable.now,
         expires_at = case when k.accepted_at is null then durable.now + $4::bigint * interval '1 millisecond' end,
         due_at = case when k.accepted_at is not null then durable.now end
    from available
   cross join durable
   where k.id = available.id and available.state in ('dead', 'unknown') and durable.setting is not null
  returning k.id, available.state as before, k.state as after
),
deferred as (
  insert into oncegate.denials as d (id, token, ttl_ms)
  select available.id, available.token, $4
    from available
   cross join durable
   where available.state = 'in_flight' and durable.setting is not null
      on conflict (id) do update set token = excluded.token, ttl_ms = excluded.ttl_ms
),
audited as (
  insert into oncegate.audit (at, service, actor, action, id, before, after)
  select durable.now, $3, 'service', 'not_executed', r.id, r.before, r.after
    from released as r
   cross join durable
)
select coalesce(available.state, k.state) as state, available.id is null as held
  from oncegate.keys as k
  left join available on available.id = k.id
 where k.id = $1 and k.token = $2 and k.service = $3
