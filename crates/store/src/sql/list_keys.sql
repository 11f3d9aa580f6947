-- list_keys: the keys that fit the filter among the next rows in the order of ids.
with scanned_rows as materialized (
  -- Rows of all services: a limit on rows that fit would not limit the rows that are read.
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.created_at, k.settled_at
    from oncegate.keys as k
   where k.id >= :from and k.id between :low and :high
   order by k.id
   limit :scan_limit
),
fitting as materialized (
  select s.id
    from scanned_rows as s
   where s.service = :service
     and (:state is null or s.state = :state)
     and (:scope_low is null or s.scope between :scope_low and :scope_high)
     and (:route is null or s.route = :route)
     and (:key is null or s.key = :key)
     and (:older_than_ms is null or coalesce(s.settled_at, s.created_at) <= :now - :older_than_ms)
   order by s.id
   limit :limit
)
select scan.scanned, scan.last, page.*
  from (select count(*) as scanned, (select s.id from scanned_rows as s order by s.id desc limit 1) as last
          from scanned_rows) as scan
  left join (select
                    {key_columns}
               from fitting
               join oncegate.keys as k on k.id = fitting.id) as page on true
 order by page.id
