-- delete_expired_requests: deletes requests of expired keys that were not deleted when their keys were completed.
delete from outbox
 where id in (select id
                from (select id, settled_at from keys where expires_at <= :as_of order by expires_at limit :limit)
               where settled_at >= :settled_since)
