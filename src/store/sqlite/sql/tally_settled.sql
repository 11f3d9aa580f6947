-- tally_settled: the first rows in the order of ids, which are hashes: a fair sample, or all there are.
with stretch as materialized (
  select k.id, k.service, k.route, k.state from keys as k order by k.id limit :stretch
)
select scan.scanned, scan.last, c.route, c.state, c.rows
  from (select count(*) as scanned, max(s.id) as last from stretch as s) as scan
  left join (select s.route, s.state, count(*) as rows
               from stretch as s
              where s.service = :service and s.state in ('completed', 'expired', 'retryable')
              group by s.route, s.state) as c on true
