-- count_instances_behind: counts living instances of a service that may still cache a purged response.
select count(*) as behind
  from oncegate.instances as i
 where i.service = $1::text
   and i.lease_until > clock_timestamp()
   and i.purges_seen < $2::bigint
