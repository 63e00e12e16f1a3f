-- Writes what was decided on remembered states; see the function in migrations/V9__compare_and_write.sql.
-- $1 $2 keys, ascending, and their remembered states; $3 $4 new states and expiries
-- $5 $6 the epoch and the instant it was decided by; $7 microseconds it may be behind the clock
-- result: the clock, or null if something is different; error TG412 says the same
select tollgate.write_known($1, $2, $3, $4, $5, $6, $7)
