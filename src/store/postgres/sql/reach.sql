-- reach: a service says how far its attempt has come.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting
),
free as materialized (
  -- What somebody's open transaction holds is told: it must not hold up what comes over this connection.
  select k.id, k.token, k.state
    from oncegate.keys as k
   where k.id = $1::bytea and k.token = $2::bytea and k.service = $3::text
     for no key update of k skip locked
),
reached as (
  update oncegate.keys as k
     set recovery_point = $4::text
    from free
   cross join durable
   where k.id = free.id and free.state not in ('completed', 'expired') and durable.setting is not null
)
select coalesce(free.state, k.state) as state, free.id is null as held
  from oncegate.keys as k
  left join free on free.id = k.id
 where k.id = $1 and k.token = $2 and k.service = $3
