-- Keeps slots given on a remembered schedule; see the function in migrations/V10__plain_insert.sql.
-- $1 policy; $2 its remembered revision; $3 per; $4 retention; $5 version; $6 epoch; $7 now; $8 behind
-- $9 ids, ascending; $10 requested; $11 by the caller; $12 scheduled; $13 positions
-- $14 $15 windows: numbers and states
-- result: the clock, or null if something is different
select tollgate.give_new_slots($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
