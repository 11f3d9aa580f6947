-- salt: draws the salt, unless there is one.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
)
insert into oncegate.meta (name, value)
select 'salt', $1::bytea
  from durable
 where durable.setting is not null
    on conflict (name) do nothing
