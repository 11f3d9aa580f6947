-- reap: deletes records past their TTL, oldest first, and instances whose lease ended a day ago.
, lapsed as materialized (
  select past.id, past.remember_ms
    from (select k.id, k.remember_ms, k.settled_at
            from oncegate.keys as k
            -- In a subquery, because an index cannot be searched for a value that changes from row to row. The caller's
            -- estimate limits the store's time: a clock that was set forward ends nothing early.
           where k.expires_at <= (select least(clock_timestamp(),
                                               timestamptz 'epoch' + $2::bigint * interval '1 millisecond'))
           order by k.expires_at
           limit $1::bigint
             for update of k skip locked) as past
   -- Not above, so that a call reads no more rows than its limit where it leaves many of them.
   where past.settled_at >= timestamptz 'epoch' + $3::bigint * interval '1 millisecond'
),
instances_deleted as (
  -- An expired lease and a missing one mean the same; the row stays for a day for people who look.
  -- Here too a clock that was set forward ends nothing early.
  delete from oncegate.instances
   where lease_until < least(clock_timestamp(), timestamptz 'epoch' + $2 * interval '1 millisecond') - interval '1 day'
),
requests_deleted as (
  -- Requests that were not deleted when their keys were completed.
  delete from oncegate.outbox as o using lapsed where o.id = lapsed.id
),
scanned_rows as (
  -- Older versions leave requests behind when they reap or purge a key. Each call reads a part of the table from a
  -- random id and a part from its beginning, whatever the table's size.
  (select o.id, o.since from oncegate.outbox as o
    where o.id >= (select sha256(uuid_send(gen_random_uuid()))) order by o.id limit $1)
   union
  (select o.id, o.since from oncegate.outbox as o order by o.id limit $1)
),
orphans as materialized (
  select s.id, s.since from scanned_rows as s where not exists (select from oncegate.keys as k where k.id = s.id)
),
orphans_deleted as (
  delete from oncegate.outbox as o using orphans
   -- Spares the request of a later life, if the key is accepted anew at this moment.
   where o.id = orphans.id and o.since = orphans.since
),
responses_dropped as (
  -- Drops the response; the record stays.
  update oncegate.keys as k
     set state = 'expired', expires_at = k.expires_at + k.remember_ms * interval '1 millisecond', remember_ms = null,
         status = null, fields = null, body = null
    from lapsed
   where k.id = lapsed.id and lapsed.remember_ms is not null
  returning k.id
),
records_deleted as (
  delete from oncegate.keys as k using lapsed where k.id = lapsed.id and lapsed.remember_ms is null
  returning k.id
)
-- Counted here, because the command tag would not count the updated rows.
select (select count(*) from records_deleted) as deleted,
       (select count(*) from responses_dropped) as responses_dropped
  from durable
 where durable.setting is not null
