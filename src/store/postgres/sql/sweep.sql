-- sweep: makes keys unknown whose attempt nobody can be running any more. Two sweepers share the work.
, lapsed as materialized (
  select k.id
    from oncegate.keys as k
    left join oncegate.instances as i on i.id = k.instance
   where k.state = 'in_flight'
     and (i.lease_until is null
          or i.lease_until <= clock_timestamp()
          or k.deadline <= clock_timestamp() - $1::bigint * interval '1 millisecond')
   limit $2::bigint
     for no key update of k skip locked
)
update oncegate.keys as k
   set state = 'unknown', settled_at = durable.now
  from lapsed
 cross join durable
 where k.id = lapsed.id and k.state = 'in_flight' and durable.setting is not null
returning k.id, k.route, k.attempt, k.instance
