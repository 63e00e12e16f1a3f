-- As before, and says whether it is behind: then the next step comes sooner. A thousand rows in five
-- seconds is less than many add.
--
-- p_after      the key that the step before ended with; p_rows: rows looked at in each table
-- p_now        what is over by then; null: by now
-- last_key     where the next step begins; null: this was the last one
-- swept_at     nothing may be decided before it
-- is_behind    half of the keys were over, or more refunds or records than one step removes
-- locks        rows that are over and that nobody holds, then the row of gate
drop function sweep_step(bytea, int, bigint);
create function sweep_step(
    p_after bytea, p_rows int, p_now bigint,
    out last_key bytea, out swept_at bigint, out is_behind bool
)
language plpgsql volatile
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_now bigint := coalesce(p_now, tollgate.clock_micros());
    v_keys int;
    v_keys_until bigint;
    v_refunds int;
    v_refunds_until bigint;
    v_records int;
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
    select count(*), max(gone.mattered_until) into v_keys, v_keys_until from gone;

    with gone as (
        delete from tollgate.refund where (run, sequence) in (
            select r.run, r.sequence from tollgate.refund r where r.expires_at <= v_now
            order by r.expires_at limit p_rows for update skip locked
        ) returning expires_at
    )
    select count(*), max(gone.expires_at) into v_refunds, v_refunds_until from gone;
    with gone as (
        delete from tollgate.record where id in (
            select r.id from tollgate.record r where r.expires_at <= v_now
            order by r.expires_at limit p_rows for update skip locked
        ) returning expires_at
    )
    select count(*), max(gone.expires_at) into v_records, v_records_until from gone;

    v_latest := greatest(v_keys_until, v_refunds_until, v_records_until);
    update tollgate.gate g set swept_at = v_latest where g.only_row and g.swept_at < v_latest;
    select g.swept_at into swept_at from tollgate.gate g where g.only_row;
    is_behind := v_keys * 2 >= p_rows or v_refunds >= p_rows or v_records >= p_rows;
end
$$;
