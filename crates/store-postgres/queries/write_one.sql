-- What write_known does, for one key and without a function around it, which takes a tenth of a lone
-- check. For sessions of ours alone, which are told once how long to wait for a lock and to plan by the
-- index (see `Statements::prepare`): a plan made while the table was tiny is kept.
-- The clock is what it was when the statement came: before what is read here was looked up, so a
-- policy or a sweep that is not seen here came after it.
--
-- $1 $2 the key and its remembered state; $3 $4 its new state and expiry
-- $5 $6 the epoch and the instant it was decided by; $7 microseconds it may be behind the clock
-- result: the clock, or no row if something is different, and nothing was written
-- locks: the row of counter, for a millisecond at most; index: counter_pkey
update tollgate.counter c set state = $3, expires_at = $4
from tollgate.gate g
where c.key = $1 and c.state = $2
  and g.only_row and g.epoch = $5 and g.swept_at <= $6
  and ($7::bigint is null or
       floor(extract(epoch from statement_timestamp()) * 1000000)::bigint between $6 and $6 + $7)
returning floor(extract(epoch from statement_timestamp()) * 1000000)::bigint
