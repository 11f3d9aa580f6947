-- reap: deletes records past their TTL, oldest first.
delete from keys
 where id in (select id
                from (select id, settled_at
                        from keys
                       where expires_at <= :as_of and remember_ms is null
                       order by expires_at
                       limit :limit)
               -- Not above, so that a call reads no more rows than its limit where it leaves many of them.
               where settled_at >= :settled_since)
