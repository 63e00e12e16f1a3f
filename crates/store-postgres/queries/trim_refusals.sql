-- Leaves in each of some slices at most $2 subjects of each limit: what the first one beyond them has
-- is taken from all, and added to what the slice misses (Misra and Gries: so that is at most the
-- slice's refusals divided by $2 + 1). $1 ledger, $3 how long a slice is kept, $4 the slices. Behind
-- the advisory lock. Relies on refusal_slice.
with ranked as (
    select r.slice, r.policy, r.limit_name, r.refused,
           row_number() over (partition by r.slice, r.policy, r.limit_name
                              order by r.refused desc) as rank
    from tollgate.refusal r
    where r.ledger = $1 and r.slice = any ($4)
), beyond as (
    select slice, policy, limit_name, refused from ranked where rank = $2 + 1
), lowered as (
    update tollgate.refusal r set refused = r.refused - beyond.refused
    from beyond
    where r.ledger = $1 and r.slice = beyond.slice and r.policy = beyond.policy
        and r.limit_name = beyond.limit_name and r.refused > beyond.refused
), gone as (
    delete from tollgate.refusal r using beyond
    where r.ledger = $1 and r.slice = beyond.slice and r.policy = beyond.policy
        and r.limit_name = beyond.limit_name and r.refused <= beyond.refused
)
insert into tollgate.refusal_missed as kept (ledger, slice, policy, limit_name, missed, kept_until)
select $1, slice, policy, limit_name, refused, slice + $3 from beyond
on conflict (ledger, slice, policy, limit_name) do update
set missed = kept.missed + excluded.missed
