-- Adds one instance's refusals to a ledger. $1 ledger, $2 how long a slice is kept, then arrays: slices,
-- policies, limits, subjects, counts, first and last instants; each subject of a slice once.
-- Locks the rows it adds to; behind the advisory lock. Relies on the primary key.
insert into tollgate.refusal as kept
    (ledger, policy, limit_name, subject_id, slice, subject, refused, first_seen, last_seen, kept_until)
select $1, policy, limit_name, sha256(convert_to(subject, 'UTF8')), slice, subject, refused,
       first_seen, last_seen, slice + $2
from unnest($3, $4, $5, $6, $7, $8, $9)
     as new (slice, policy, limit_name, subject, refused, first_seen, last_seen)
on conflict (ledger, policy, limit_name, subject_id, slice) do update
set refused = kept.refused + excluded.refused,
    first_seen = least(kept.first_seen, excluded.first_seen),
    last_seen = greatest(kept.last_seen, excluded.last_seen)
