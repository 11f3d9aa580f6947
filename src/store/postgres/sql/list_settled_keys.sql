-- list_settled_keys: keys after this id that were settled lately. Reads at most $5 rows, whether they fit or not.
select k.id, k.token, k.scope, k.key, k.route, k.path, k.state, k.status,
       k.service = $1::text
         and k.route = any ($2::text[])
         and k.state in ('completed', 'dead', 'retryable', 'unknown')
         and k.settled_at >= clock_timestamp() - $3::bigint * interval '1 millisecond' as wanted
  from oncegate.keys as k
 where k.id > $4::bytea
 order by k.id
 limit $5::bigint
