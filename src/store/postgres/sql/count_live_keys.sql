-- count_live_keys: a holder's live keys, up to a limit.
select oncegate.count_live_keys_1($1::bytea, $2::bigint) as count
