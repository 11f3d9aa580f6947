-- reserve: reserves keys without a record. A key that returns no row was taken; find returns who has it.
select token from oncegate.reserve_2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) as token
