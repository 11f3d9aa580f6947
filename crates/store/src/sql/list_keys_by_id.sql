-- list_keys_by_id: the keys whose ids begin so. Ids are hashes: few do.
select
  {key_columns}
  from oncegate.keys as k
 where k.id between :low and :high
   and k.service = :service
 order by k.id
 limit :limit
