-- bury: an accepted key that is not tried again, with the reason in the audit.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
),
free as materialized (
  -- What somebody's open transaction holds is left to them.
  select k.id, k.state from oncegate.keys as k where k.id = $1::bytea for no key update of k skip locked
),
buried as (
  update oncegate.keys as k
     set state = 'dead', settled_at = durable.now, due_at = case free.state when 'unknown' then null else durable.now end
    from free
   cross join durable
   where k.id = free.id
     and k.token = $2::bytea
     and k.accepted_at is not null
     and k.state = any ($3::text[])
     and durable.setting is not null
  returning k.id, k.service, free.state as was
),
noted as (
  insert into oncegate.audit (at, service, actor, action, id, before, after, note)
  select durable.now, b.service, 'delivery', 'give_up', b.id, b.was, 'dead', $4::text
    from buried as b
   cross join durable
)
select b.id from buried as b
