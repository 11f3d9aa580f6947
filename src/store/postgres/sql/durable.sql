-- durable: makes the transaction durable and reads the clock, once for each statement. Every writing statement starts
-- with it: shared sessions cannot be configured, so each write sets its own durability, and only ever raises it.
with durable as materialized (
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
)
