-- Locks and reads everything one batch needs; see the function in migrations/V1__initial.sql.
-- $1 keys to lock, ascending; $2 keys to read; $3 skip what somebody else holds
-- $4 advisory locks, ascending; $5 idempotency keys; $6 $7 receipts, by run and sequence
-- $8 $9 milliseconds: to wait for a lock, and to be left alone in the transaction
-- result: one row of arrays, then what was read behind the locks: epoch, swept_at, clock
select keys, states, read_keys, read_states, ids, fingerprints, bodies, expiries,
       runs, sequences, epoch, swept_at, now_micros
from tollgate.lock_batch($1, $2, $3, $4, $5, $6, $7, $8, $9)
