-- apply_deferred_reports: makes keys retryable whose service reported "not executed" while the attempt ran, and whose
-- attempt has ended since without a response.
, reports as materialized (
  -- Few rows, if any; each finds its key by the primary key, whatever number of rows the planner expects.
  select d.id, d.token, d.ttl_ms,
         (select -- After a response that leaves the outcome unknown, the cause is another one, and the response decides. Rows of
                 -- earlier releases have none.
                 case when k.state = 'in_flight' or k.cause is null or k.cause in ('broken', 'crashed', 'store', 'timeout')
                      then k.state end
            from oncegate.keys as k where k.id = d.id and k.token = d.token) as state
    from oncegate.denials as d
),
ended as materialized (
  -- Rows that another transaction has locked are left for the next pass.
  select k.id, k.state, reports.ttl_ms
    from reports
   cross join lateral (
           select u.id, u.state
             from oncegate.keys as u
            where u.id = reports.id and u.token = reports.token
              and (u.cause is null or u.cause in ('broken', 'crashed', 'store', 'timeout'))
            limit 1
              for no key update of u skip locked
         ) as k
   where reports.state in ('dead', 'unknown')
   limit $1::bigint
),
released as (
  update oncegate.keys as k
     -- Only a deliverer tries an accepted key again.
     set state = case when k.accepted_at is null then 'retryable' else 'queued' end, settled_at = durable.now,
         expires_at = case when k.accepted_at is null then durable.now + ended.ttl_ms * interval '1 millisecond' end,
         due_at = case when k.accepted_at is not null then durable.now end
    from ended
   cross join durable
   where k.id = ended.id and ended.state in ('dead', 'unknown') and durable.setting is not null
  returning k.id, k.service, ended.state as before, k.state as after
),
spent as materialized (
  -- Reports whose attempt ended otherwise, was followed by the next one, or was released by an earlier pass. A report that
  -- is replaced at this moment is left for the next pass, so that none waits for the other.
  select d.id, d.token
    from reports
    join oncegate.denials as d on d.id = reports.id and d.token = reports.token
   where coalesce(reports.state, 'none') not in ('dead', 'in_flight', 'unknown')
     for update of d skip locked
),
reports_deleted as (
  delete from oncegate.denials as d using spent where d.id = spent.id and d.token = spent.token
),
audited as (
  insert into oncegate.audit (at, service, actor, action, id, before, after)
  select durable.now, r.service, 'service', 'not_executed', r.id, r.before, r.after
    from released as r
   cross join durable
)
select r.id from released as r
