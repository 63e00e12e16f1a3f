-- Alerts, newest first. $1 only those with a smaller id, $2 how many. Takes no locks.
select id, rule, policy, limit_name, subject, refused, within, first_seen, raised_at
from tollgate.alert
where id < $1
order by id desc
limit $2
