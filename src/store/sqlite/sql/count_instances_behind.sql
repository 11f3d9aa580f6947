-- count_instances_behind: counts living instances of a service that may still cache a purged response.
select count(*) as behind from instances where service = :service and lease_until > :now and purges_seen < :purges
