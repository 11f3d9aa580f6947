-- list_keys_by_age: dead or unknown keys that fit the filter, the oldest first.
select
  {key_columns}
  from oncegate.keys as k
 where k.service = :service
   and k.state in ('dead', 'unknown')
   and k.state = :state
   and (k.settled_at, k.id) >= (:settled_at, :from)
   and k.id between :low and :high
   and (:scope_low is null or k.scope between :scope_low and :scope_high)
   and (:route is null or k.route = :route)
   and (:key is null or k.key = :key)
   and (:older_than_ms is null or coalesce(k.settled_at, k.created_at) <= :now - :older_than_ms)
 order by k.settled_at, k.id
 limit :limit
