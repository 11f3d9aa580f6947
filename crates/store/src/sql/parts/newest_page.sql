-- newest_page: a page of the keys that fit the filter among scanned rows, the newest first, and where the scan ended.
fitting as materialized (
  select id, created_at
    from scanned_rows
   where
     {fits_filter}
   order by created_at desc, id desc
   limit :limit
)
select scan.scanned, scan.last_at, scan.last, page.*
  from (select count(*) as scanned,
               (select s.created_at from scanned_rows as s order by s.created_at, s.id limit 1) as last_at,
               (select s.id from scanned_rows as s order by s.created_at, s.id limit 1) as last
          from scanned_rows) as scan
  left join (select
                    {key_columns}
               from fitting
               join oncegate.keys as k on k.id = fitting.id) as page on true
 order by page.created_at desc, page.id desc
