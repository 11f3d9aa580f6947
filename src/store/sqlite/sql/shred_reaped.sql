-- shred_reaped: requests that were not taken out when their keys were completed, with these keys.
delete from outbox
 where id in (select id from keys where expires_at <= :now order by expires_at limit :limit)
