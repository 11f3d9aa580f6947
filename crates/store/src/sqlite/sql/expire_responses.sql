-- expire_responses: drops the response of a record that is remembered past its TTL; the record stays.
update keys
   set state = 'expired', expires_at = expires_at + remember_ms, {response resets}
 where id in (select id
                from (select id, settled_at
                        from keys
                       where expires_at <= :as_of and remember_ms is not null
                       order by expires_at
                       limit :limit)
               -- Not above, so that a call reads no more rows than its limit where it leaves many of them.
               where settled_at >= :settled_since)
