-- heed: what its service had denied while it was running, and has ended since without a response.
select k.id, k.token, k.service, k.state, d.ttl_ms
  from denials as d
  join keys as k on k.id = d.id and k.token = d.token
 where k.state in ('dead', 'unknown')
 order by k.id
 limit :limit
