-- list_keys: the keys that fit the filter among the next rows, the newest first.
with settled_rows as materialized (
  -- Rows of all services: a limit on rows that fit would not limit the rows that are read.
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.path, k.created_at, k.settled_at
    from oncegate.keys as k
   where k.settled_at is not null
     and k.created_at between :created_from and :at
     and (k.created_at < :at or k.id < :from)
   order by k.created_at desc, k.id desc
   limit :scan_limit
),
scanned_rows as materialized (
  select * from settled_rows
  union all
  -- The index of newest keys has none in flight. They are few, and are sorted here.
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.path, k.created_at, k.settled_at
    from oncegate.keys as k
   where k.state = 'in_flight'
     and k.created_at between :created_from and :at
     and (k.created_at < :at or k.id < :from)
   order by created_at desc, id desc
   limit :scan_limit
),
{newest_page}
