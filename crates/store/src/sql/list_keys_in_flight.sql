-- list_keys_in_flight: keys in flight that fit the filter; there are few.
select
  {key_columns}
  from oncegate.keys as k
 where k.state = 'in_flight'
   and k.id >= :from
   and
     {fits_filter}
 order by k.id
 limit :limit
