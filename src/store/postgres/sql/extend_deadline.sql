-- extend_deadline: moves the deadlines of attempts in flight. None comes earlier.
, extensions as materialized (
  select e.id, e.token, e.time_limit_ms
    from unnest($1::bytea[], $2::bytea[], $3::bigint[]) as e (id, token, time_limit_ms)
),
available as materialized (
  -- A row that another transaction has locked is reported: it must not block the others.
  select k.id, k.state, extensions.time_limit_ms
    from extensions
    join oncegate.keys as k on k.id = extensions.id and k.token = extensions.token
   order by k.id
     for no key update of k skip locked
),
extended as (
  update oncegate.keys as k
     set deadline = greatest(k.deadline, durable.now + available.time_limit_ms * interval '1 millisecond')
    from available
   cross join durable
   where k.id = available.id and available.state = 'in_flight' and durable.setting is not null
)
select k.id, available.id is null as held
  from extensions
  join oncegate.keys as k on k.id = extensions.id and k.token = extensions.token
  left join available on available.id = k.id
 where coalesce(available.state, k.state) = 'in_flight'
