-- The two functions below compare and write with one statement instead of locking first: each row
-- is found once and changed once. They wait for a row that somebody holds, but for a millisecond
-- only (error 55P03): whoever meets another instance there goes the long way. Rows are changed in
-- the order of their keys, as everybody locks them.

-- Writes what was decided on remembered states, if they are still what the database holds. One
-- statement, so one round trip.
--
-- p_keys, p_known     distinct keys in ascending order, and the states they were last seen with
-- p_states, p_expiries  what to write
-- p_epoch, p_now      what it was decided by
-- p_behind            how far p_now may be behind the clock, in microseconds; null: any time will do
-- result              the clock; null: something is different, and nothing was written
-- error TG412         the same, found after something was written: it is undone
-- locks               existing rows of counter, for a millisecond at most; index: counter_pkey
create or replace function write_known(
    p_keys bytea[], p_known bytea[], p_states bytea[], p_expiries bigint[],
    p_epoch bigint, p_now bigint, p_behind bigint
) returns bigint
language plpgsql volatile
set lock_timeout = 1
-- A plan made while the table was tiny is kept, and would read all of it for ever; and only a
-- nested loop keeps the order of the keys.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now constant bigint := tollgate.clock_micros();
    v_written bigint;
begin
    if p_behind is not null and (v_now < p_now or v_now - p_now > p_behind) then return null; end if;
    if cardinality(p_keys) = 1 then
        update tollgate.counter c set state = p_states[1], expires_at = p_expiries[1]
        from tollgate.gate g
        where c.key = p_keys[1] and c.state = p_known[1]
          and g.only_row and g.epoch = p_epoch and g.swept_at <= p_now;
        if not found then return null; end if;
    else
        perform from tollgate.gate g where g.only_row and g.epoch = p_epoch and g.swept_at <= p_now;
        if not found then return null; end if;
        update tollgate.counter c set state = new.state, expires_at = new.expires_at
        from unnest(p_keys, p_known, p_states, p_expiries) new (key, known, state, expires_at)
        where c.key = new.key and c.state = new.known;
        get diagnostics v_written = row_count;
        if v_written < cardinality(p_keys) then
            raise exception 'a remembered state is not what is kept' using errcode = 'TG412';
        end if;
    end if;
    return v_now;
end
$$;

-- Keeps slots that were given on a remembered schedule, if it is still what the database holds.
-- One statement, so one round trip.
--
-- p_policy, p_revision, p_per  the schedule as it was remembered
-- p_epoch, p_now      what it was decided by; no epoch: a policy that is stored nowhere
-- p_behind            how far p_now may be behind the clock, in microseconds; null: any time will do
-- p_ids and so on     the slots, sorted by id
-- p_numbers, p_states the windows they are in, as they are now
-- result              the clock; null: something is different, and nothing was written
-- error TG409         an event has a slot already; nothing was written
-- locks               the policy's row in schedule, for a millisecond at most; then ids in
--                     ascending order, each for as long
create or replace function give_slots(
    p_policy text, p_revision bigint, p_per bigint, p_retention bigint, p_version bigint,
    p_epoch bigint, p_now bigint, p_behind bigint,
    p_ids text[], p_requested bigint[], p_by_caller bool[], p_scheduled bigint[],
    p_positions bigint[], p_numbers bigint[], p_states bytea[]
) returns bigint
language plpgsql volatile
set lock_timeout = 1
as $$
declare
    v_now constant bigint := tollgate.clock_micros();
    v_given bigint;
begin
    if p_behind is not null and (v_now < p_now or v_now - p_now > p_behind) then return null; end if;
    update tollgate.schedule s set revision = p_revision + 1, retention = p_retention
    from tollgate.gate g
    where s.policy = p_policy and s.revision = p_revision and s.per = p_per
      and g.only_row and (p_epoch is null or g.epoch = p_epoch) and g.swept_at <= p_now;
    if not found then return null; end if;

    insert into tollgate.slot
        (event_id, policy, version, requested_at, by_caller, scheduled_at, per, position, created_at)
    select id, p_policy, p_version, requested_at, by_caller, scheduled_at, p_per, position, p_now
    from unnest(p_ids, p_requested, p_by_caller, p_scheduled, p_positions)
        new (id, requested_at, by_caller, scheduled_at, position)
    on conflict (event_id) do nothing;
    get diagnostics v_given = row_count;
    if v_given < cardinality(p_ids) then
        raise exception 'an event has a slot already' using errcode = 'TG409';
    end if;
    insert into tollgate.slot_window (policy, number, state, revision)
    select p_policy, number, state, p_revision + 1
    from unnest(p_numbers, p_states) changed (number, state)
    on conflict (policy, number) do update set state = excluded.state, revision = excluded.revision;
    return v_now;
end
$$;
