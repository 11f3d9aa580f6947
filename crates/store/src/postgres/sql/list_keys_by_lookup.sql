-- list_keys_by_lookup: the keys that fit the filter among the next ones with a value, the newest first.
-- Each page reads all keys with the value: most values have few, and the time limit of a call bounds the rest.
with found as materialized (
  select k.id
    from oncegate.keys as k
   where k.lookups is not null
     and oncegate.split_lookups(k.lookups) operator(pg_catalog.@>) array[:lookup]
),
scanned_rows as materialized (
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.path, k.created_at, k.settled_at
    from found
    join oncegate.keys as k on k.id = found.id
   where k.created_at between :created_from and :at
     and (k.created_at < :at or k.id < :from)
   order by k.created_at desc, k.id desc
   limit :scan_limit
),
{newest_page}
