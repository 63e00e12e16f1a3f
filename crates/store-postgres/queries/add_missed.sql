-- Adds what an instance knows to be missing from a ledger. $1 ledger, $2 how long a slice is kept, then
-- arrays: slices, policies, limits, counts; each limit of a slice once. Behind the advisory lock.
insert into tollgate.refusal_missed as kept (ledger, slice, policy, limit_name, missed, kept_until)
select $1, slice, policy, limit_name, missed, slice + $2
from unnest($3, $4, $5, $6) as new (slice, policy, limit_name, missed)
on conflict (ledger, slice, policy, limit_name) do update
set missed = kept.missed + excluded.missed
