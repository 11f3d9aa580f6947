-- due_probes: unknown keys of a route that are quiet and due for a probe, see claim_probe.
select k.id, k.token
  from oncegate.keys as k
 where k.service = :service
   and k.state = 'unknown'
   and k.route = :route
   and coalesce(k.probe_at, k.settled_at) <= least(:now, :as_of)
   and k.deadline + :quiet_after_ms <= least(:now, :as_of)
 order by coalesce(k.probe_at, k.settled_at)
 limit :limit
