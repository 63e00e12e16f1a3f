-- Keeps new slots, sorted by id. $1 ids; $2 policy; $3 version; $4 requested; $5 by the caller;
-- $6 scheduled; $7 per; $8 positions; $9 created
-- result: the ids that were free; locks: none that wait but for the same id; index: slot_pkey
insert into tollgate.slot
    (event_id, policy, version, requested_at, by_caller, scheduled_at, per, position, created_at)
select id, $2, $3, requested_at, by_caller, scheduled_at, $7, position, created_at
from unnest($1, $4, $5, $6, $8, $9)
    new (id, requested_at, by_caller, scheduled_at, position, created_at)
order by id
on conflict (event_id) do nothing
returning 1
