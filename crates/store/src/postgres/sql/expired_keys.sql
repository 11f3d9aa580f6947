-- expired_keys: records past their TTL, the oldest end first, see reap.
select k.id, k.settled_at >= :settled_since as fits
  from oncegate.keys as k
 where k.expires_at <= least(:now, :as_of)
 order by k.expires_at
 limit :limit
