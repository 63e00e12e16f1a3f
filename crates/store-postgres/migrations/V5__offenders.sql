-- Refusals of all instances, added up by subject in slices of time. A ledger is one way of slicing:
-- that of offenders, or that of an alert rule. `subject_id` is a hash of `subject`, so that a long
-- one fits into an index. Whoever changes these tables holds the advisory lock `tollgate refusals`:
-- one instance at a time, so sums are complete when rules are looked at and nobody deadlocks.
create table refusal (
    ledger     text not null,
    policy     text not null,
    limit_name text not null,
    subject_id bytea not null,
    slice      bigint not null,
    subject    text not null,
    refused    bigint not null,
    first_seen bigint not null,
    last_seen  bigint not null,
    kept_until bigint not null,
    primary key (ledger, policy, limit_name, subject_id, slice)
) with (fillfactor = 70);
create index refusal_slice on refusal (ledger, slice, policy, limit_name);
create index refusal_kept_until on refusal (kept_until);

-- What the counts of a slice may be short of.
create table refusal_missed (
    ledger     text not null,
    slice      bigint not null,
    policy     text not null,
    limit_name text not null,
    missed     bigint not null,
    kept_until bigint not null,
    primary key (ledger, slice, policy, limit_name)
);
create index refusal_missed_kept_until on refusal_missed (kept_until);

-- For whom a rule was met, and until when that is one episode. `raised_by` is the number of the
-- merge that began it.
create table alert_episode (
    rule        text not null,
    policy      text not null,
    limit_name  text not null,
    subject_id  bytea not null,
    lasts_until bigint not null,
    raised_by   bigint not null,
    primary key (rule, policy, limit_name, subject_id)
);
create index alert_episode_lasts_until on alert_episode (lasts_until);

-- Alerts raised, the newest so many of them. No limit and no subject: about the policy as a whole.
create table alert (
    id         bigint generated always as identity primary key,
    rule       text not null,
    policy     text not null,
    limit_name text,
    subject    text,
    refused    bigint not null,
    within     bigint not null,
    first_seen bigint not null,
    raised_at  bigint not null
);
