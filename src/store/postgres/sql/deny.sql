-- deny: a service says that its attempt was not executed. Of what is still in flight that is only noted: see heed.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
),
free as materialized (
  -- What somebody's open transaction holds is told: it must not hold up what comes over this connection.
  select k.id, k.token, k.state
    from oncegate.keys as k
   where k.id = $1::bytea and k.token = $2::bytea and k.service = $3::text
     for no key update of k skip locked
),
released as (
  update oncegate.keys as k
     -- What was accepted is for us to try again, and for nobody else.
     set state = case when k.accepted_at is null then 'retryable' else 'queued' end, settled_at = durable.now,
         expires_at = case when k.accepted_at is null then durable.now + $4::bigint * interval '1 millisecond' end,
         due_at = case when k.accepted_at is not null then durable.now end
    from free
   cross join durable
   where k.id = free.id and free.state in ('dead', 'unknown') and durable.setting is not null
  returning k.id, free.state as before, k.state as after
),
noted as (
  insert into oncegate.denials as d (id, token, ttl_ms)
  select free.id, free.token, $4 from free cross join durable where free.state = 'in_flight' and durable.setting is not null
      on conflict (id) do update set token = excluded.token, ttl_ms = excluded.ttl_ms
),
told as (
  insert into oncegate.audit (at, service, actor, action, id, before, after)
  select durable.now, $3, 'service', 'not_executed', r.id, r.before, r.after
    from released as r
   cross join durable
)
select coalesce(free.state, k.state) as state, free.id is null as held
  from oncegate.keys as k
  left join free on free.id = k.id
 where k.id = $1 and k.token = $2 and k.service = $3
