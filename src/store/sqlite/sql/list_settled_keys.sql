-- list_settled_keys: keys after this id that were settled lately. Reads at most :limit rows, whether they fit or not.
select id, token, scope, key, route, path, state, status,
       service = :service
         and state in ('completed', 'dead', 'retryable', 'unknown')
         and coalesce(settled_at >= :now - :since_ms, 0) as wanted
  from keys
 where id > :after
 order by id
 limit :limit
