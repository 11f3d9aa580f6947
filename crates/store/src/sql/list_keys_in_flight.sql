-- list_keys_in_flight: keys in flight that fit the filter; there are few.
select
  {key_columns}
  from oncegate.keys as k
 where k.service = :service
   and k.state = 'in_flight'
   and k.id >= :from
   and k.id between :low and :high
   and (:scope_low is null or k.scope between :scope_low and :scope_high)
   and (:route is null or k.route = :route)
   and (:key is null or k.key = :key)
   and (:older_than_ms is null or k.created_at <= :now - :older_than_ms)
 order by k.id
 limit :limit
