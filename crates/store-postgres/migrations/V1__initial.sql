-- Counts, one row per key. The key begins with the fingerprint of its limit.
-- An empty state belongs to a key that was locked for the first time and has counted nothing yet.
-- No index on what changes, and room left in each page: every update is a heap-only tuple.
create table counter (
    key        bytea primary key,
    state      bytea not null,
    expires_at bigint not null
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

-- One row. `epoch` grows with every change of a policy, an override or a token. No decision may
-- be made before `swept_at`: something that mattered until then is gone.
create table gate (
    only_row bool primary key default true check (only_row),
    epoch    bigint not null,
    swept_at bigint not null
) with (fillfactor = 50);
insert into gate (epoch, swept_at) values (1, -9223372036854775808);

-- Receipts given back, until they would have expired anyway.
create table refund (
    run        bigint not null,
    sequence   bigint not null,
    expires_at bigint not null,
    primary key (run, sequence)
);
create index refund_expires_at on refund (expires_at);

-- Answers kept for replay under an idempotency key.
create table record (
    id          bytea primary key,
    fingerprint bytea not null,
    body        bytea not null,
    expires_at  bigint not null
);
create index record_expires_at on record (expires_at);

-- Every version of every policy; the newest is in force, and deletes the policy if it has no document.
create table policy_version (
    name       text not null,
    version    bigint not null,
    document   text,
    created_by text not null,
    created_at bigint not null,
    primary key (name, version)
);

-- The document last applied from a configuration file, by policy.
create table file_policy (
    name     text primary key,
    document text not null
);

create table override (
    policy     text not null,
    limit_name text not null,
    key_values bytea not null,
    subject    text not null,
    max        bigint not null,
    created_by text not null,
    created_at bigint not null,
    primary key (policy, limit_name, key_values)
);

create table token (
    hash       bytea primary key,
    name       text not null,
    scope      text not null,
    created_at bigint not null
);

-- Single values: the secret.
create table setting (
    name  text primary key,
    value bytea not null
);

create function clock_micros() returns bigint
language sql volatile as $$ select floor(extract(epoch from clock_timestamp()) * 1000000)::bigint $$;

-- Locks and reads everything one batch needs. Functions, because their plans are kept by the
-- session and unnamed statements' are not: it halves the time of a lone check.
--
-- Lock order, the same for everybody, so that no two batches can wait for each other:
--   1. idempotency keys, in ascending order;
--   2. new rows: inserted in key order while no existing row is locked;
--   3. existing rows: locked in key order. Nobody in this step waits for a row of step 2, because
--      a row that is not committed cannot be seen; so a key can still be missing afterwards, and
--      the caller rolls back and asks again.
--
-- p_lock, p_read   distinct keys to lock, in ascending order; keys only to look at
-- p_impatient      skip rows that somebody else holds
-- p_advisory       what stands for each of p_ids in the advisory locks, in ascending order
-- p_ids            idempotency keys
-- p_runs, p_sequences  receipts about to be given back
-- p_lock_wait, p_idle  how long to wait for a lock, and how long this transaction may be left alone
--                      before it is ended, in milliseconds as text
-- result           keys and states as found, then what was read after all locks were held
-- locks            see above; index: counter_pkey, record_pkey, refund_pkey
create function lock_batch(
    p_lock bytea[], p_read bytea[], p_impatient bool,
    p_advisory bigint[], p_ids bytea[],
    p_runs bigint[], p_sequences bigint[],
    p_lock_wait text, p_idle text,
    out keys bytea[], out states bytea[], out read_keys bytea[], out read_states bytea[],
    out ids bytea[], out fingerprints bytea[], out bodies bytea[], out expiries bigint[],
    out runs bigint[], out sequences bigint[],
    out epoch bigint, out swept_at bigint, out now_micros bigint
)
language plpgsql volatile
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_advisory bigint;
    v_there bigint;
begin
    perform set_config('lock_timeout', p_lock_wait, true);
    perform set_config('idle_in_transaction_session_timeout', p_idle, true);
    foreach v_advisory in array p_advisory loop
        perform pg_advisory_xact_lock(v_advisory);
    end loop;

    if cardinality(p_lock) > 0 then
        select count(*) into v_there from tollgate.counter c where c.key = any (p_lock);
        if v_there < cardinality(p_lock) then
            -- Not swept before the batch that made it had time to come back for it.
            insert into tollgate.counter (key, state, expires_at)
            select k, '', tollgate.clock_micros() + 60000000
            from unnest(p_lock) k
            order by k
            on conflict (key) do nothing;
        end if;
        if p_impatient then
            select array_agg(l.key), array_agg(l.state) into keys, states
            from (select c.key, c.state from tollgate.counter c where c.key = any (p_lock)
                  order by c.key for update skip locked) l;
        else
            select array_agg(l.key), array_agg(l.state) into keys, states
            from (select c.key, c.state from tollgate.counter c where c.key = any (p_lock)
                  order by c.key for update) l;
        end if;
    end if;

    -- Each statement from here on sees what was committed while the locks were waited for.
    if cardinality(p_read) > 0 then
        select array_agg(c.key), array_agg(c.state) into read_keys, read_states
        from tollgate.counter c where c.key = any (p_read);
    end if;
    if cardinality(p_ids) > 0 then
        select array_agg(r.id), array_agg(r.fingerprint), array_agg(r.body), array_agg(r.expires_at)
        into ids, fingerprints, bodies, expiries
        from tollgate.record r where r.id = any (p_ids);
    end if;
    if cardinality(p_runs) > 0 then
        select array_agg(r.run), array_agg(r.sequence) into runs, sequences
        from unnest(p_runs, p_sequences) asked (run, sequence)
        join tollgate.refund r on r.run = asked.run and r.sequence = asked.sequence;
    end if;
    -- The clock first: what is decided by an epoch was then decided before any later one.
    now_micros := tollgate.clock_micros();
    -- By its index: a scan, with scans made this dear, is dear enough for every session to compile it.
    select g.epoch, g.swept_at into epoch, swept_at from tollgate.gate g where g.only_row;
end
$$;

-- Writes what one batch changed. Every key is locked by this transaction already.
create function write_batch(
    p_keys bytea[], p_states bytea[], p_expiries bigint[],
    p_ids bytea[], p_fingerprints bytea[], p_bodies bytea[], p_record_expiries bigint[],
    p_runs bigint[], p_sequences bigint[], p_refund_expiries bigint[]
) returns void
language plpgsql volatile
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
    -- All of them conflict. An update joined to the arrays would be planned once per session, and a
    -- plan made while the table is small reads all of it for ever (measured: seconds for 64 keys).
    insert into tollgate.counter (key, state, expires_at)
    select * from unnest(p_keys, p_states, p_expiries)
    on conflict (key) do update set state = excluded.state, expires_at = excluded.expires_at;
    if cardinality(p_ids) > 0 then
        -- One that had expired may still stand there.
        insert into tollgate.record (id, fingerprint, body, expires_at)
        select * from unnest(p_ids, p_fingerprints, p_bodies, p_record_expiries)
        on conflict (id) do update set
            fingerprint = excluded.fingerprint,
            body = excluded.body,
            expires_at = excluded.expires_at;
    end if;
    if cardinality(p_runs) > 0 then
        insert into tollgate.refund (run, sequence, expires_at)
        select * from unnest(p_runs, p_sequences, p_refund_expiries);
    end if;
end
$$;

-- Looks at the next p_rows keys after p_after and removes the idle ones, and as many refunds and
-- records that have expired. Skips what is in use.
--
-- p_now      what to sweep by; null: the clock
-- result     the last key looked at (null at the end), the instant before which nothing may be
--            decided any more, and about how many keys there are
-- locks      the rows it removes, without waiting, then gate; index: counter_pkey, *_expires_at
create function sweep_step(
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
    select max(gone.mattered_until) into v_latest from gone;
    update tollgate.gate g set swept_at = v_latest where g.only_row and g.swept_at < v_latest;
    select g.swept_at into swept_at from tollgate.gate g where g.only_row;

    delete from tollgate.refund where (run, sequence) in (
        select r.run, r.sequence from tollgate.refund r where r.expires_at <= v_now
        order by r.expires_at limit p_rows for update skip locked
    );
    delete from tollgate.record where id in (
        select r.id from tollgate.record r where r.expires_at <= v_now
        order by r.expires_at limit p_rows for update skip locked
    );
    select greatest(c.reltuples, 0)::bigint into keys
    from pg_class c where c.oid = 'tollgate.counter'::regclass;
end
$$;
