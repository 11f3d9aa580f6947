-- reap: deletes records past their TTL, oldest first.
delete from keys
 where id in (select id from keys where expires_at <= :now and remember_ms is null order by expires_at limit :limit)
