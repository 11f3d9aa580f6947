-- list_keys_by_age: dead or unknown keys that fit the filter, the oldest first.
select
  {key_columns}
  from oncegate.keys as k
 where k.service = :service
   and k.state in ('dead', 'unknown')
   and k.state = :state
   and (k.settled_at, k.id) >= (:at, :from)
   and
     {fits_filter}
 order by k.settled_at, k.id
 limit :limit
