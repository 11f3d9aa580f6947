-- list_instances: the instances of a service, the one that has renewed its lease last before the others.
select i.id,
       (date_part('epoch', i.started_at) * 1000)::bigint as started_ms,
       (date_part('epoch', i.renewed_at) * 1000)::bigint as renewed_ms,
       (date_part('epoch', i.lease_until) * 1000)::bigint as lease_until_ms,
       (date_part('epoch', clock_timestamp()) * 1000)::bigint as now_ms
  from oncegate.instances as i
 where i.service = $1::text
 order by i.renewed_at desc, i.id
 limit $2::bigint
