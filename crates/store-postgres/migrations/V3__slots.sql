-- Every slot ever given, until its policy's retention is over. Never changed.
create table slot (
    event_id     text collate "C" primary key,
    policy       text not null,
    version      bigint not null,
    requested_at bigint not null,
    by_caller    bool not null,
    scheduled_at bigint not null,
    per          bigint not null,
    position     bigint not null,
    created_at   bigint not null
);
create index slot_scheduled_at on slot (policy, scheduled_at, event_id);

-- Slots given back.
create table slot_cancel (
    event_id     text collate "C" primary key,
    cancelled_at bigint not null
);

-- One row per policy that gave a slot: the length of its windows, how long its slots are kept, and
-- a number that grows with every group. Whoever assigns or cancels locks it first: the one lock
-- of schedules.
create table schedule (
    policy    text primary key,
    per       bigint not null,
    retention bigint not null,
    revision  bigint not null
) with (fillfactor = 50);

-- Which places of a window are taken, and the revision that changed it last: an instance reads
-- only what changed since it last looked.
create table slot_window (
    policy   text not null,
    number   bigint not null,
    state    bytea not null,
    revision bigint not null,
    primary key (policy, number)
) with (fillfactor = 70);
create index slot_window_revision on slot_window (policy, revision);
