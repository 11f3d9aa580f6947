-- renew: takes or prolongs an instance's lease, and tells the time.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
)
insert into oncegate.instances as i (id, started_at, renewed_at, lease_until)
select $1::bigint, durable.now, durable.now, durable.now + $2::bigint * interval '1 millisecond'
  from durable
 where durable.setting is not null
    on conflict (id) do update set renewed_at = excluded.renewed_at, lease_until = excluded.lease_until
returning (date_part('epoch', i.renewed_at) * 1000)::bigint as now_ms
