-- Who was refused most. $1 ledger, $2 the oldest slice that counts, $3 how many. Takes no locks.
-- Relies on refusal_slice.
select most.policy, most.limit_name, most.subject, most.refused, most.first_seen, most.last_seen,
       coalesce((select sum(m.missed) from tollgate.refusal_missed m
                 where m.ledger = $1 and m.slice >= $2
                 and m.policy = most.policy and m.limit_name = most.limit_name), 0)::bigint
from (
    select policy, limit_name, subject, sum(refused)::bigint as refused,
           min(first_seen) as first_seen, max(last_seen) as last_seen
    from tollgate.refusal
    where ledger = $1 and slice >= $2
    group by policy, limit_name, subject
    order by sum(refused) desc, max(last_seen) desc, policy, limit_name, subject
    limit $3
) most
order by most.refused desc, most.last_seen desc, most.policy, most.limit_name, most.subject
