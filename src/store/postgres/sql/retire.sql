-- retire: gives an instance's lease back.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
)
delete from oncegate.instances as i
 using durable
 where i.id = $1::bigint and durable.setting is not null
