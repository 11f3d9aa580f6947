-- delete_expired_requests: deletes requests of expired keys that were not deleted when their keys were completed.
delete from outbox
 where id in (select id from keys where expires_at <= :now order by expires_at limit :limit)
