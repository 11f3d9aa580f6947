-- forget_key_of_events: takes what belongs to a purged key's caller from its events, the one that the purge has written
-- too.
update events set key = null, fields = null, body = null where id = :id
