-- catch_up: returns when all that could be seen before it is as durable as a commit of our own. A commit that was cut off
-- while it waited for its standby can be seen, and the standby may not have it yet.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting
)
select pg_logical_emit_message(true, 'oncegate', '')
  from durable
 where durable.setting is not null
