-- Messages that were removed while the idempotency key they were sent under is still remembered: a
-- retry is told of them, and sends nothing.
create table mail_removed (
    tenant_id text not null,
    id        text not null,
    digest    blob not null,    -- the message's
    until     integer not null, -- of no use to anybody after
    primary key (tenant_id, id)
) without rowid;
create index mail_removed_until on mail_removed (until);
