-- report_recovery_point: a service reports its attempt's recovery point.
, available as materialized (
  -- A row that another transaction has locked is reported: it must not block this connection.
  select k.id, k.token, k.state
    from oncegate.keys as k
   where k.id = $1::bytea and k.token = $2::bytea and k.service = $3::text
     for no key update of k skip locked
),
reached as (
  update oncegate.keys as k
     set recovery_point = $4::text
    from available
   cross join durable
   where k.id = available.id and available.state not in ('completed', 'expired') and durable.setting is not null
)
select coalesce(available.state, k.state) as state, available.id is null as held
  from oncegate.keys as k
  left join available on available.id = k.id
 where k.id = $1 and k.token = $2 and k.service = $3
