-- As before, but a refund or a record that is removed also raises `swept_at`: on a clock that is then
-- set back, its receipt would be good once more.
create or replace function sweep_step(
    p_after bytea, p_rows int, p_now bigint,
    out last_key bytea, out swept_at bigint, out keys bigint
)
language plpgsql volatile
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_now bigint := coalesce(p_now, tollgate.clock_micros());
    v_keys_until bigint;
    v_refunds_until bigint;
    v_records_until bigint;
    v_latest bigint;
begin
    select c.key into last_key from tollgate.counter c
    where c.key > p_after order by c.key offset p_rows - 1 limit 1;
    with idle as (
        select c.key from tollgate.counter c
        where c.key > p_after and (last_key is null or c.key <= last_key) and c.expires_at <= v_now
        order by c.key limit p_rows for update skip locked
    ), gone as (
        delete from tollgate.counter c using idle where c.key = idle.key
        returning case when c.state = '' then null else c.expires_at end as mattered_until
    )
    select max(gone.mattered_until) into v_keys_until from gone;

    with gone as (
        delete from tollgate.refund where (run, sequence) in (
            select r.run, r.sequence from tollgate.refund r where r.expires_at <= v_now
            order by r.expires_at limit p_rows for update skip locked
        ) returning expires_at
    )
    select max(gone.expires_at) into v_refunds_until from gone;
    with gone as (
        delete from tollgate.record where id in (
            select r.id from tollgate.record r where r.expires_at <= v_now
            order by r.expires_at limit p_rows for update skip locked
        ) returning expires_at
    )
    select max(gone.expires_at) into v_records_until from gone;

    v_latest := greatest(v_keys_until, v_refunds_until, v_records_until);
    update tollgate.gate g set swept_at = v_latest where g.only_row and g.swept_at < v_latest;
    select g.swept_at into swept_at from tollgate.gate g where g.only_row;
    select greatest(c.reltuples, 0)::bigint into keys
    from pg_class c where c.oid = 'tollgate.counter'::regclass;
end
$$;
