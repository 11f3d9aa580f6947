-- list_instances: the instances of a service, the one that has renewed its lease last before the others.
select id, started_at as started_ms, renewed_at as renewed_ms, lease_until as lease_until_ms, :now as now_ms
  from instances
 where service = :service
 order by renewed_at desc, id
 limit :limit
