-- list_keys_by_lookup: the keys that fit the filter among the next ones with a value, the newest first.
-- Each page reads all keys with the value: most values have few.
with found (id) as materialized (
  select k.id from keys as k where k.lookups is not null and substr(k.lookups, 1, 16) = :lookup
  union
  select k.id from keys as k where k.lookups is not null and substr(k.lookups, 17, 16) = :lookup
  union
  select k.id from keys as k where k.lookups is not null and substr(k.lookups, 33, 16) = :lookup
  union
  select k.id from keys as k where k.lookups is not null and substr(k.lookups, 49, 16) = :lookup
),
scanned_rows as materialized (
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.path, k.created_at, k.settled_at
    from found
   -- In this order: the values are few.
   cross join keys as k on k.id = found.id
   where k.created_at between :created_from and :at
     and (k.created_at < :at or k.id < :from)
   order by k.created_at desc, k.id desc
   limit :scan_limit
),
{newest_page}
