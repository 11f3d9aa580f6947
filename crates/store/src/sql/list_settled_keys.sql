-- list_settled_keys: keys after this id. Reads at most so many rows, whether they were settled lately or not.
select k.id, k.token, k.scope, k.key, k.route, k.path, k.state, k.status,
       k.service = :service
         and k.state in ('completed', 'dead', 'retryable', 'unknown')
         and coalesce(k.settled_at, 0) >= :now - :since_ms as fits
  from oncegate.keys as k
 where k.id > :after
 order by k.id
 limit :limit
