-- Writes what one batch changed; every key is locked by this transaction already.
-- $1 $2 $3 keys, states, expiries; $4 $5 $6 $7 records; $8 $9 $10 refunds
select tollgate.write_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
