-- sweep: makes keys unknown whose attempt nobody can be running any more. Two sweepers share the work.
, clock as materialized (
  -- The caller's estimate limits the store's time: a clock that was set forward ends nothing early.
  select least(durable.now, estimate.now) as now, greatest(durable.now, estimate.now) as latest
    from durable
   cross join (select timestamptz 'epoch' + $3::bigint * interval '1 millisecond' as now) as estimate
),
lapsed as materialized (
  select k.id
    from oncegate.keys as k
   cross join clock
    left join oncegate.instances as i on i.id = k.instance
   where k.state = 'in_flight'
     and (i.lease_until is null
          or i.lease_until <= clock.now
          -- The clock was set back, and the instance has not renewed its lease since.
          or i.renewed_at > clock.latest + $1::bigint * interval '1 millisecond'
          or k.deadline <= clock.now - $1 * interval '1 millisecond')
   limit $2::bigint
     for no key update of k skip locked
)
update oncegate.keys as k
   set state = 'unknown', settled_at = durable.now, cause = 'crashed'
  from lapsed
 cross join durable
 where k.id = lapsed.id and k.state = 'in_flight' and durable.setting is not null
returning k.id, k.route, k.attempt, k.instance
