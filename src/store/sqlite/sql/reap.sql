-- reap: forgets records past their TTL, oldest first.
delete from keys
 where id in (select id from keys where expires_at <= :now order by expires_at limit :limit)
