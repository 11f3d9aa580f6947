-- list_keys: the keys that fit the filter among the next rows, the newest first.
with scanned_rows as materialized (
  -- Rows of all services: a limit on rows that fit would not limit the rows that are read.
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.path, k.created_at, k.settled_at
    from oncegate.keys as k
   where k.created_at between :created_from and :at
     and (k.created_at < :at or k.id < :from)
   order by k.created_at desc, k.id desc
   limit :scan_limit
),
{newest_page}
