-- report_recovery_point: services report the recovery points of their attempts.
, reports as materialized (
  select r.id, r.token, r.service, r.recovery_point
    from unnest($1::bytea[], $2::bytea[], $3::text[], $4::text[]) as r (id, token, service, recovery_point)
),
available as materialized (
  -- A row that another transaction has locked is reported: it must not block the others.
  select k.id, k.state, reports.recovery_point
    from reports
    join oncegate.keys as k on k.id = reports.id and k.token = reports.token and k.service = reports.service
   order by k.id
     for no key update of k skip locked
),
reached as (
  update oncegate.keys as k
     set recovery_point = available.recovery_point
    from available
   cross join durable
   where k.id = available.id and available.state not in ('completed', 'expired') and durable.setting is not null
)
select k.id, coalesce(available.state, k.state) as state, available.id is null as held
  from reports
  join oncegate.keys as k on k.id = reports.id and k.token = reports.token and k.service = reports.service
  left join available on available.id = k.id
