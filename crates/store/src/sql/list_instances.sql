-- list_instances: the instances of a service, the one that has renewed its lease last before the others.
select i.id, i.started_at, i.renewed_at, i.lease_until, :now as now
  from oncegate.instances as i
 where replace(' ' || i.services || ' ', ' ' || :service || ' ', '') <> ' ' || i.services || ' '
 order by i.renewed_at desc, i.id
 limit :limit
