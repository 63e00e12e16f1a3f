-- Counts, one row per key. The key begins with the fingerprint of its limit.
create table counter (
    key   blob primary key,
    state blob not null
) without rowid;

-- Each run of the store that wrote to this file, and the last spend of it that is in the file.
create table run (
    id                 integer primary key,
    started_at         integer not null,
    committed_sequence integer not null
);

-- Receipts given back, until they would have expired anyway.
create table refund (
    run        integer not null,
    sequence   integer not null,
    expires_at integer not null,
    primary key (run, sequence)
) without rowid;
create index refund_expires_at on refund (expires_at);

-- Answers kept for replay under an idempotency key.
create table record (
    id          blob primary key,
    fingerprint blob not null,
    body        blob not null,
    expires_at  integer not null
) without rowid;
create index record_expires_at on record (expires_at);

-- Every version of every policy; the newest is in force, and deletes the policy if it has no document.
create table policy_version (
    name       text not null,
    version    integer not null,
    document   text,
    created_by text not null,
    created_at integer not null,
    primary key (name, version)
) without rowid;

-- The document last applied from a configuration file, by policy.
create table file_policy (
    name     text primary key,
    document text not null
) without rowid;

create table override (
    policy     text not null,
    limit_name text not null,
    key_values blob not null,
    subject    text not null,
    max        integer not null,
    created_by text not null,
    created_at integer not null,
    primary key (policy, limit_name, key_values)
) without rowid;

create table token (
    hash       blob primary key,
    name       text not null,
    scope      text not null,
    created_at integer not null
) without rowid;

-- Single values: the secret, and the instant up to which idle keys were removed.
create table setting (
    name  text primary key,
    value blob not null
) without rowid;
