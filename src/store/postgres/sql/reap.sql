-- reap: forgets records past their TTL, oldest first, and instances that are long gone.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
),
doomed as materialized (
  select k.id, k.remember_ms
    from oncegate.keys as k
    -- In a subquery, because an index cannot be searched for a value that changes from row to row.
   where k.expires_at <= (select clock_timestamp())
   order by k.expires_at
   limit $1::bigint
     for update of k skip locked
),
gone as (
  -- A lease that has run out and one that is missing mean the same; a day is for people who look.
  delete from oncegate.instances where lease_until < clock_timestamp() - interval '1 day'
),
shredded as (
  -- What was not taken out when its key was completed.
  delete from oncegate.outbox as o using doomed where o.id = doomed.id
),
stretch as (
  -- What older instances leave when they reap or purge a key, as they know nothing of requests. A stretch of them at each
  -- time, from anywhere on and from the beginning, whatever their number.
  (select o.id, o.since from oncegate.outbox as o
    where o.id >= (select sha256(uuid_send(gen_random_uuid()))) order by o.id limit $1)
   union
  (select o.id, o.since from oncegate.outbox as o order by o.id limit $1)
),
orphans as materialized (
  select s.id, s.since from stretch as s where not exists (select from oncegate.keys as k where k.id = s.id)
),
swept as (
  delete from oncegate.outbox as o using orphans
   -- Not the request of a later life, should the key be accepted anew at this moment.
   where o.id = orphans.id and o.since = orphans.since
),
remembered as (
  -- The response goes; that there was one stays.
  update oncegate.keys as k
     set state = 'expired', expires_at = k.expires_at + k.remember_ms * interval '1 millisecond', remember_ms = null,
         status = null, fields = null, body = null
    from doomed
   where k.id = doomed.id and doomed.remember_ms is not null
)
delete from oncegate.keys as k
 using doomed
 cross join durable
 where k.id = doomed.id and doomed.remember_ms is null and durable.setting is not null
