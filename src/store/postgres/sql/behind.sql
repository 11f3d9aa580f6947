-- behind: living instances of a service that may still remember what was purged.
select count(*) as behind
  from oncegate.instances as i
 where i.service = $1::text
   and i.lease_until > clock_timestamp()
   and i.purges_seen < $2::bigint
