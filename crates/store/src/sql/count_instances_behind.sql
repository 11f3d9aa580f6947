-- count_instances_behind: counts living instances of a service that may still cache a purged response.
select count(*) as behind
  from oncegate.instances as i
 where replace(' ' || i.services || ' ', ' ' || :service || ' ', '') <> ' ' || i.services || ' '
   and i.lease_until > :now and i.purges_seen < :purges
