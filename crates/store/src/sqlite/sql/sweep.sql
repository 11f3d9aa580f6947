-- sweep: makes keys unknown whose attempt nobody can be running any more.
update keys
   set state = 'unknown', settled_at = :now, cause = 'crashed'
 where id in (
         select k.id
           from keys as k
           left join instances as i on i.id = k.instance
          where k.state = 'in_flight'
            and (i.lease_until is null
                 or i.lease_until <= :as_of
                 -- The clock was set back, and the instance has not renewed its lease since.
                 or i.renewed_at > max(:now, :estimate) + :expiry_ms
                 or k.deadline <= :as_of - :expiry_ms)
          limit :limit)
returning id, route, attempt, instance
