-- add_weekly_counts: adds a batch of an instance's counts to the week that has begun, unless it was added before.
with added as (
  insert into oncegate.weekly_batches as b (instance, batch, added_at)
  values (:instance, :batch, :now)
      on conflict (instance) do update set batch = excluded.batch, added_at = excluded.added_at
   where b.batch < excluded.batch
  returning b.instance
)
insert into oncegate.weekly_counts as c (week, service, route, caller, kind, count)
select {this_week},
       n.service, n.route, n.caller, n.kind, n.count
  from added
 cross join json_to_recordset(:counts::json) as n (service text, route text, caller text, kind text, count bigint)
 order by n.service, n.route, n.caller, n.kind -- instances that add at once must not deadlock
    on conflict (week, service, route, caller, kind) do update set count = c.count + excluded.count
