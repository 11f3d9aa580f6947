-- apply_deferred_reports: reports of "not executed" whose attempt has ended since without a response.
select k.id, k.token, k.service, k.state, d.ttl_ms
  from deferred_reports as d
       -- A cross join keeps its order in SQLite: few reports, if any, and each finds its key. The other order reads all
       -- keys.
 cross join keys as k on k.id = d.id and k.token = d.token
 where k.state in ('dead', 'unknown')
   -- After a response that leaves the outcome unknown, the cause is another one. Rows of earlier releases have none.
   and (k.cause is null or k.cause in ('broken', 'crashed', 'store', 'timeout'))
 order by d.id
 limit :limit
