-- The relay's own tables. Instants are microseconds since the epoch; 1 is true.

-- Values that all instances share, such as the check of the key that seals passwords.
create table mail_setting (
    name  text primary key,
    value blob not null
) without rowid;

create table mail_tenant (
    id                 text primary key,
    name               text not null,
    report_url         text,
    report_secret      blob,    -- sealed
    token_hash         blob,
    suspended          integer not null default 0,
    created_at         integer not null,
    -- Reports to this tenant: who sends them now, and when to try again.
    report_lease_until integer,
    report_lease_by    text,
    report_retry_at    integer,
    report_failures    integer not null default 0
) without rowid;
create unique index mail_tenant_token on mail_tenant (token_hash) where token_hash is not null;

-- Batches whose messages wait, those still to come included.
create table mail_suspended_batch (
    tenant_id  text not null,
    batch_code text not null,
    primary key (tenant_id, batch_code)
) without rowid;

create table mail_account (
    tenant_id            text not null,
    id                   text not null,
    host                 text not null,
    port                 integer not null,
    username             text,
    password             blob,    -- sealed
    from_address         text,
    tls                  text not null,
    root_cert            text,
    allow_plaintext_auth integer not null,
    limit_per_minute     integer,
    limit_per_hour       integer,
    limit_per_day        integer,
    limit_behavior       text not null,
    limit_unit           text not null,
    priority0_share      integer not null,
    concurrency          integer not null,
    resume_at            integer, -- nothing is sent before
    resume_ordinary_at   integer, -- nothing but priority 0 is sent before
    version              integer not null,
    created_at           integer not null,
    updated_at           integer not null,
    primary key (tenant_id, id)
) without rowid;

-- How many messages each account has in each state, and what became of the others; kept with every
-- change, so that nobody ever counts a backlog. Always the last rows a transaction writes.
create table mail_tally (
    tenant_id    text not null,
    account_id   text not null,
    waiting      integer not null default 0,
    deferred     integer not null default 0,
    sending      integer not null default 0,
    suspended    integer not null default 0,
    sent         integer not null default 0,
    errors       integer not null default 0,
    rate_limited integer not null default 0,
    primary key (tenant_id, account_id)
) without rowid;

create table mail_key (
    id          text primary key,
    tenant_id   text not null,
    account_id  text not null,
    hash        blob not null unique,
    name        text not null,
    daily_limit integer not null,
    timezone    text not null,
    enabled     integer not null,
    created_at  integer not null
) without rowid;

-- state: 0 waiting, 1 deferred until due_at, 2 sending under a lease, 3 suspended, 4 sent, 5 error.
create table mail_message (
    seq         integer primary key autoincrement,
    tenant_id   text not null,
    id          text not null,
    account_id  text not null,
    state       integer not null,
    priority    integer not null,
    due_at      integer,
    batch_code  text,
    recipients  integer not null,
    attempts    integer not null default 0,
    last_error  text,
    created_at  integer not null,
    finished_at integer,
    claimed_at  integer,
    lease_until integer,
    lease_by    text,
    receipt     text,             -- what its API key spent for it
    digest      blob not null     -- of everything the caller gave
);
create unique index mail_message_id on mail_message (tenant_id, id);
create index mail_message_next on mail_message (tenant_id, account_id, priority, seq) where state = 0;
create index mail_message_due on mail_message (due_at) where state = 1;
create index mail_message_lease on mail_message (lease_until) where state = 2;
create index mail_message_list on mail_message (tenant_id, state, seq);
create index mail_message_batch on mail_message (tenant_id, batch_code, state) where batch_code is not null;
create index mail_message_finished on mail_message (finished_at) where finished_at is not null;

-- What is to be sent, apart, so that listing and claiming never read it. Gone when it is final.
create table mail_content (
    message_seq integer primary key,
    bytes       blob not null
);

create table mail_send_log (
    seq         integer primary key autoincrement,
    message_seq integer not null,
    tenant_id   text not null,
    message_id  text not null,
    account_id  text not null,
    started_at  integer not null,
    finished_at integer not null,
    instance    text not null,
    smtp_code   integer,
    smtp_text   text not null,
    outcome     text not null
);
create index mail_send_log_message on mail_send_log (message_seq);

-- Final outcomes that their tenant was not told yet.
create table mail_report (
    seq        integer primary key autoincrement,
    tenant_id  text not null,
    message_id text not null,
    account_id text not null,
    batch_code text,
    status     text not null,
    at         integer not null,
    attempts   integer not null,
    smtp_code  integer,
    error      text
);
create index mail_report_tenant on mail_report (tenant_id, seq);

-- Receipts whose quota is due back to its key.
create table mail_refund (
    seq     integer primary key autoincrement,
    receipt text not null
);
