-- The relay's own tables, beside the store's. Instants are microseconds since the epoch; 1 is true.

-- Values that all instances share, such as the check of the key that seals passwords.
create table tollgate.mail_setting (
    name  text primary key,
    value bytea not null
);

create table tollgate.mail_tenant (
    id                 text primary key,
    name               text not null,
    report_url         text,
    report_secret      bytea,    -- sealed
    token_hash         bytea,
    suspended          bigint not null default 0,
    created_at         bigint not null,
    -- Reports to this tenant: who sends them now, and when to try again.
    report_lease_until bigint,
    report_lease_by    text,
    report_retry_at    bigint,
    report_failures    bigint not null default 0
);
create unique index mail_tenant_token on tollgate.mail_tenant (token_hash) where token_hash is not null;

-- Batches whose messages wait, those still to come included.
create table tollgate.mail_suspended_batch (
    tenant_id  text not null,
    batch_code text not null,
    primary key (tenant_id, batch_code)
);

create table tollgate.mail_account (
    tenant_id            text not null,
    id                   text not null,
    host                 text not null,
    port                 bigint not null,
    username             text,
    password             bytea,    -- sealed
    from_address         text,
    tls                  text not null,
    root_cert            text,
    allow_plaintext_auth bigint not null,
    limit_per_minute     bigint,
    limit_per_hour       bigint,
    limit_per_day        bigint,
    limit_behavior       text not null,
    limit_unit           text not null,
    priority0_share      bigint not null,
    concurrency          bigint not null,
    resume_at            bigint, -- nothing is sent before
    resume_ordinary_at   bigint, -- nothing but priority 0 is sent before
    version              bigint not null,
    created_at           bigint not null,
    updated_at           bigint not null,
    primary key (tenant_id, id)
);

-- How many messages each account has in each state, and what became of the others; kept with every
-- change, so that nobody ever counts a backlog. Always the last rows a transaction writes.
create table tollgate.mail_tally (
    tenant_id    text not null,
    account_id   text not null,
    waiting      bigint not null default 0,
    deferred     bigint not null default 0,
    sending      bigint not null default 0,
    suspended    bigint not null default 0,
    sent         bigint not null default 0,
    errors       bigint not null default 0,
    rate_limited bigint not null default 0,
    primary key (tenant_id, account_id)
);

create table tollgate.mail_key (
    id          text primary key,
    tenant_id   text not null,
    account_id  text not null,
    hash        bytea not null unique,
    name        text not null,
    daily_limit bigint not null,
    timezone    text not null,
    enabled     bigint not null,
    created_at  bigint not null
);

-- state: 0 waiting, 1 deferred until due_at, 2 sending under a lease, 3 suspended, 4 sent, 5 error.
create table tollgate.mail_message (
    seq         bigint generated always as identity primary key,
    tenant_id   text not null,
    id          text not null,
    account_id  text not null,
    state       bigint not null,
    priority    bigint not null,
    due_at      bigint,
    batch_code  text,
    recipients  bigint not null,
    attempts    bigint not null default 0,
    last_error  text,
    created_at  bigint not null,
    finished_at bigint,
    claimed_at  bigint,
    lease_until bigint,
    lease_by    text,
    receipt     text,             -- what its API key spent for it
    digest      bytea not null     -- of everything the caller gave
);
create unique index mail_message_id on tollgate.mail_message (tenant_id, id);
create index mail_message_next on tollgate.mail_message (tenant_id, account_id, priority, seq) where state = 0;
create index mail_message_due on tollgate.mail_message (due_at) where state = 1;
create index mail_message_lease on tollgate.mail_message (lease_until) where state = 2;
create index mail_message_list on tollgate.mail_message (tenant_id, state, seq);
create index mail_message_batch on tollgate.mail_message (tenant_id, batch_code, state) where batch_code is not null;
create index mail_message_finished on tollgate.mail_message (finished_at) where finished_at is not null;

-- What is to be sent, apart, so that listing and claiming never read it. Gone when it is final.
create table tollgate.mail_content (
    message_seq bigint primary key,
    bytes       bytea not null
);

create table tollgate.mail_send_log (
    seq         bigint generated always as identity primary key,
    message_seq bigint not null,
    tenant_id   text not null,
    message_id  text not null,
    account_id  text not null,
    started_at  bigint not null,
    finished_at bigint not null,
    instance    text not null,
    smtp_code   bigint,
    smtp_text   text not null,
    outcome     text not null
);
create index mail_send_log_message on tollgate.mail_send_log (message_seq);

-- Final outcomes that their tenant was not told yet.
create table tollgate.mail_report (
    seq        bigint generated always as identity primary key,
    tenant_id  text not null,
    message_id text not null,
    account_id text not null,
    batch_code text,
    status     text not null,
    at         bigint not null,
    attempts   bigint not null,
    smtp_code  bigint,
    error      text
);
create index mail_report_tenant on tollgate.mail_report (tenant_id, seq);

-- Receipts whose quota is due back to its key.
create table tollgate.mail_refund (
    seq     bigint generated always as identity primary key,
    receipt text not null
);
