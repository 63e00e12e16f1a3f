-- Messages that were removed while the idempotency key they were sent under is still remembered: a
-- retry is told of them, and sends nothing.
create table tollgate.mail_removed (
    tenant_id text not null,
    id        text not null,
    digest    bytea not null,  -- the message's
    until     bigint not null, -- of no use to anybody after
    primary key (tenant_id, id)
);
create index mail_removed_until on tollgate.mail_removed (until);
