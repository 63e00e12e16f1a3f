-- Leaves in each of some slices at most $2 subjects of each limit, those refused most; the largest
-- count that goes is added to what the slice misses. $1 ledger, $3 how long a slice is kept, $4 the
-- slices. Behind the advisory lock, so that a ctid stays what it is. Relies on refusal_slice.
with ranked as (
    select r.ctid as place,
           row_number() over (partition by r.slice, r.policy, r.limit_name
                              order by r.refused desc, r.last_seen desc) as rank
    from tollgate.refusal r
    where r.ledger = $1 and r.slice = any ($4)
), gone as (
    delete from tollgate.refusal
    where ctid = any (array(select place from ranked where rank > $2))
    returning slice, policy, limit_name, refused
)
insert into tollgate.refusal_missed as kept (ledger, slice, policy, limit_name, missed, kept_until)
select $1, slice, policy, limit_name, max(refused), slice + $3
from gone
group by slice, policy, limit_name
on conflict (ledger, slice, policy, limit_name) do update
set missed = kept.missed + excluded.missed
