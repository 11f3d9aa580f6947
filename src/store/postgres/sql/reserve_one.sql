-- reserve_one: reserves a key without a record. A key that is taken has one, which find returns.
select oncegate.reserve_one_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) as reserved
