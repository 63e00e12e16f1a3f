-- Writes what was decided on remembered states, if they are still what the database holds and
-- nobody holds them. One statement, so one round trip. It never waits for a row: whoever meets
-- another instance on a key goes the long way, by lock_batch and write_batch.
--
-- p_keys, p_known     distinct keys in ascending order, and the states they were last seen with
-- p_states, p_expiries  what to write
-- p_epoch, p_now      what it was decided by
-- p_behind            how far p_now may be behind the clock, in microseconds; null: any time will do
-- result              the clock; null: something is different, and nothing was written
-- locks               existing rows of counter, without waiting; index: counter_pkey
create function write_known(
    p_keys bytea[], p_known bytea[], p_states bytea[], p_expiries bigint[],
    p_epoch bigint, p_now bigint, p_behind bigint
) returns bigint
language plpgsql volatile
-- A plan made while the table was tiny is kept, and would read all of it for ever.
set enable_seqscan = off
as $$
declare
    v_now constant bigint := tollgate.clock_micros();
    v_found bytea[];
begin
    if p_behind is not null and (v_now < p_now or v_now - p_now > p_behind) then return null; end if;
    if cardinality(p_keys) = 1 then
        with same as materialized (
            select c.ctid from tollgate.counter c, tollgate.gate g
            where c.key = p_keys[1] and c.state = p_known[1]
              and g.only_row and g.epoch = p_epoch and g.swept_at <= p_now
            for update of c skip locked
        )
        update tollgate.counter c set state = p_states[1], expires_at = p_expiries[1]
        from same where c.ctid = same.ctid;
        if not found then return null; end if;
    else
        select array_agg(l.state) into v_found
        from (select c.state from tollgate.counter c where c.key = any (p_keys)
              order by c.key for update skip locked) l;
        -- All are there in the same order, or some are missing and the lengths differ.
        if v_found is distinct from p_known then return null; end if;
        perform from tollgate.gate g where g.only_row and g.epoch = p_epoch and g.swept_at <= p_now;
        if not found then return null; end if;
        insert into tollgate.counter (key, state, expires_at)
        select * from unnest(p_keys, p_states, p_expiries)
        on conflict (key) do update set state = excluded.state, expires_at = excluded.expires_at;
    end if;
    return v_now;
end
$$;
