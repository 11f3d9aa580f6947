-- heed: what its service had denied while it was running, and has ended since without a response, is retryable.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
),
stands as materialized (
  -- Few rows, if any; each finds its key by the primary key, whatever the planner thinks of their number.
  select d.id, d.token, d.ttl_ms,
         (select k.state from oncegate.keys as k where k.id = d.id and k.token = d.token) as state
    from oncegate.denials as d
),
over as materialized (
  -- What somebody's open transaction holds is left for the next pass.
  select k.id, k.state, stands.ttl_ms
    from stands
   cross join lateral (
           select u.id, u.state
             from oncegate.keys as u
            where u.id = stands.id and u.token = stands.token
            limit 1
              for no key update of u skip locked
         ) as k
   where stands.state in ('dead', 'unknown')
   limit $1::bigint
),
released as (
  update oncegate.keys as k
     -- What was accepted is for us to try again, and for nobody else.
     set state = case when k.accepted_at is null then 'retryable' else 'queued' end, settled_at = durable.now,
         expires_at = case when k.accepted_at is null then durable.now + over.ttl_ms * interval '1 millisecond' end,
         due_at = case when k.accepted_at is not null then durable.now end
    from over
   cross join durable
   where k.id = over.id and over.state in ('dead', 'unknown') and durable.setting is not null
  returning k.id, k.service, over.state as before, k.state as after
),
forgotten as (
  -- What has ended otherwise, what the next attempt has followed, and what an earlier pass has released.
  delete from oncegate.denials as d
   using stands
   where d.id = stands.id and d.token = stands.token
     and coalesce(stands.state, 'none') not in ('dead', 'in_flight', 'unknown')
),
told as (
  insert into oncegate.audit (at, service, actor, action, id, before, after)
  select durable.now, r.service, 'service', 'not_executed', r.id, r.before, r.after
    from released as r
   cross join durable
)
select r.id from released as r
