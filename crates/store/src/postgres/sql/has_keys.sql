-- has_keys: a row, if the store has keys.
select k.id from oncegate.keys as k limit 1
