-- count_settled_keys: the first rows in the order of ids. Ids are hashes, so this is a fair sample, or all rows.
with scanned_rows as materialized (
  select k.id, k.service, k.route, k.state from oncegate.keys as k order by k.id limit :scan_limit
)
select scan.scanned, scan.last, c.route, c.state, c.rows
  from (select count(*) as scanned, (select s.id from scanned_rows as s order by s.id desc limit 1) as last
          from scanned_rows) as scan
  left join (select s.route, s.state, count(*) as rows
               from scanned_rows as s
              where s.service = :service and s.state in ('completed', 'expired', 'retryable')
              group by s.route, s.state) as c on true
