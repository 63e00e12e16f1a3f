-- Looks at a rule for some subjects, and raises an alert for each who meets it and has no episode.
-- $1 ledger, $2 rule, $3 refusals needed, $4 the rule's time, $5 now, $6 the oldest slice that may
-- count, $7 the number of this merge, then arrays: policies, limits, subjects. Returns the alerts.
-- A slice that began before the rule's time counts only if no refusal in it is older, and one of the
-- future, by a clock that was ahead, does not. Behind the
-- advisory lock: what other instances merged is seen. Relies on the primary keys.
with met as (
    select r.policy, r.limit_name, r.subject_id, r.subject,
           sum(r.refused)::bigint as refused, min(r.first_seen) as first_seen
    from unnest($8, $9, $10) as asked (policy, limit_name, subject)
    join tollgate.refusal r
        on r.ledger = $1 and r.policy = asked.policy and r.limit_name = asked.limit_name
        and r.subject_id = sha256(convert_to(asked.subject, 'UTF8'))
    where r.slice between $6 and $5 and r.first_seen >= $5 - $4
    group by r.policy, r.limit_name, r.subject_id, r.subject
    having sum(r.refused) >= $3
), begun as (
    insert into tollgate.alert_episode as episode
        (rule, policy, limit_name, subject_id, lasts_until, raised_by)
    select $2, policy, limit_name, subject_id, $5 + $4, $7 from met
    on conflict (rule, policy, limit_name, subject_id) do update
    set lasts_until = greatest(episode.lasts_until, excluded.lasts_until),
        raised_by = case when episode.lasts_until < $5 then $7 else episode.raised_by end
    returning policy, limit_name, subject_id, raised_by
)
insert into tollgate.alert
    (rule, policy, limit_name, subject, refused, within, first_seen, raised_at)
select $2, policy, nullif(limit_name, ''), nullif(subject, ''), refused, $4, first_seen, $5
from met join begun using (policy, limit_name, subject_id)
where raised_by = $7
order by first_seen, subject
returning id, rule, policy, limit_name, subject, refused, within, first_seen, raised_at
