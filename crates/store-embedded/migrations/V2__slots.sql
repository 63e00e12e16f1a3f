-- Every slot ever given, until its policy's retention is over. Never changed.
create table slot (
    event_id     text primary key,
    policy       text not null,
    version      integer not null,
    requested_at integer not null,
    by_caller    integer not null,
    scheduled_at integer not null,
    per          integer not null,
    position     integer not null,
    created_at   integer not null
) without rowid;
create index slot_scheduled_at on slot (policy, scheduled_at, event_id);

-- Slots given back.
create table slot_cancel (
    event_id     text primary key,
    cancelled_at integer not null
) without rowid;

-- Which places of a window are taken.
create table slot_window (
    policy text not null,
    number integer not null,
    state  blob not null,
    primary key (policy, number)
) without rowid;

-- The length of the windows above, and how long slots are kept, by policy.
create table schedule (
    policy    text primary key,
    per       integer not null,
    retention integer not null
) without rowid;
