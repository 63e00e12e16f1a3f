-- Removes what is no longer kept, a little at a time. $1 now, $2 rows of each table, $3 alerts to keep.
-- Behind the advisory lock. Relies on the indexes of kept_until and lasts_until.
with slices as (
    delete from tollgate.refusal where ctid = any (array(
        select ctid from tollgate.refusal where kept_until < $1 limit $2))
), missed as (
    delete from tollgate.refusal_missed where ctid = any (array(
        select ctid from tollgate.refusal_missed where kept_until < $1 limit $2))
), episodes as (
    delete from tollgate.alert_episode where ctid = any (array(
        select ctid from tollgate.alert_episode where lasts_until < $1 limit $2))
)
delete from tollgate.alert where id <= (select max(id) from tollgate.alert) - $3
