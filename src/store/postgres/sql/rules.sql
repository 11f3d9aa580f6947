-- rules: remembers how a service's routes find their keys, and tells how they last did where that was another way.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting
),
given as materialized (
  select g.route, g.finds from unnest($2::text[], $3::text[]) as g (route, finds)
),
written as (
  insert into oncegate.rules as r (service, route, finds)
  select $1::text, given.route, given.finds
    from given
   cross join durable
   where durable.setting is not null
   -- Instances that start together wait for each other in one order.
   order by given.route
      on conflict (service, route) do update set finds = excluded.finds where r.finds <> excluded.finds
)
-- As they stood before this statement.
select before.route, before.finds
  from oncegate.rules as before
  join given using (route)
 where before.service = $1::text and before.finds <> given.finds
 order by before.route
