-- sweep: makes keys unknown whose attempt nobody can be running any more.
update keys
   set state = 'unknown', settled_at = :now
 where id in (
         select k.id
           from keys as k
           left join instances as i on i.id = k.instance
          where k.state = 'in_flight'
            and (i.lease_until is null or i.lease_until <= :now or k.deadline <= :now - :expiry_ms)
          limit :limit)
returning id, route, attempt, instance
