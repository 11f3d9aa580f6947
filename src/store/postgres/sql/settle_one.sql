-- settle_one: ends an attempt. Only the newest attempt's token fits, and a completed key stays as it is.
select changed, expires_at_ms from oncegate.settle_one_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
