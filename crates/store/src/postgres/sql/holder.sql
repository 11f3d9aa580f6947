-- holder: the holder that a key counts for.
select k.holder from oncegate.keys as k where k.id = :id
