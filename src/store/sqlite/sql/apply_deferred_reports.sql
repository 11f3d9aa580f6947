-- apply_deferred_reports: reports of "not executed" whose attempt has ended since without a response.
select k.id, k.token, k.service, k.state, d.ttl_ms
  from denials as d
  join keys as k on k.id = d.id and k.token = d.token
 where k.state in ('dead', 'unknown')
 order by k.id
 limit :limit
