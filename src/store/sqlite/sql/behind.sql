-- behind: living instances of a service that may still remember what was purged.
select count(*) as behind from instances where service = :service and lease_until > :now and purges_seen < :purges
