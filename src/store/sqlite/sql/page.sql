-- page: the keys after this one that were settled of late. Each page reads so many rows at most, wanted or not.
select id, token, scope, key, route, path, state, status,
       service = :service
         and state in ('completed', 'dead', 'retryable', 'unknown')
         and coalesce(settled_at >= :now - :since_ms, 0) as wanted
  from keys
 where id > :after
 order by id
 limit :limit
