-- reserve: who inserts the key has it; whoever gets no row back asks find who was first.
select token from oncegate.reserve_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) as token
