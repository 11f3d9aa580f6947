-- settle: ends attempts. Only the newest attempt's token fits, and a completed key stays as it is.
select settled as id, until_ms as expires_at_ms from oncegate.settle_3($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
