-- renew: takes or prolongs an instance's lease, notes which purges it has seen, and tells the time and their count.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
)
insert into oncegate.instances as i (id, started_at, renewed_at, lease_until, service, purges_seen)
select $1::bigint, durable.now, durable.now, durable.now + $2::bigint * interval '1 millisecond', $3::text,
       -- Who has just been started remembers nothing.
       coalesce($4::bigint, (select c.value from oncegate.counters as c where c.name = 'purges'), 0)
  from durable
 where durable.setting is not null
    on conflict (id) do update
       set renewed_at = excluded.renewed_at, lease_until = excluded.lease_until,
           service = excluded.service,
           -- A first renewal that is carried out after others does not speak for what was remembered since.
           purges_seen = coalesce($4::bigint, i.purges_seen)
returning (date_part('epoch', i.renewed_at) * 1000)::bigint as now_ms,
          coalesce((select c.value from oncegate.counters as c where c.name = 'purges'), 0) as purges
