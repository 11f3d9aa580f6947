-- crashed_keys: keys in flight whose attempt nobody can be running any more, see mark_crashed.
select k.id, k.token, k.route, k.attempt, k.instance
  from oncegate.keys as k
  left join oncegate.instances as i on i.id = k.instance
 where k.state = 'in_flight'
   and (i.lease_until is null
        or i.lease_until <= least(:now, :as_of)
        or i.renewed_at > greatest(:now, :as_of) + :expiry_ms
        or k.deadline <= least(:now, :as_of) - :expiry_ms)
 limit :limit
