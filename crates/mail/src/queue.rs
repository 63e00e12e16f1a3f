//! Where everything the relay keeps is kept: SQLite beside the embedded store, or PostgreSQL.
//!
//! Both are asked by the same methods, and each method is one transaction: it happened as a whole
//! and durably when it answers, or not at all. Time is always an argument. Nothing here decides
//! about limits; that is the gate's.

mod postgres;
mod records;
mod sqlite;

use std::path::Path;

use tollgate::Instant;

use crate::error::MailError;
use crate::model::{
    AccountKey, ApiKey, Attempt, Content, Counts, MessageQuery, MessageRow, Report, Selection,
    Tenant,
};

pub(crate) use postgres::Postgres;
pub(crate) use records::{
    AccountRecord, Inserted, MessageRecord, ReportClaim, TenantRecord, encode_content,
};
pub(crate) use sqlite::Sqlite;

/// One of the two.
#[derive(Debug)]
pub(crate) enum Queue {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

/// Who claims, when, and until when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lease<'a> {
    pub(crate) instance: &'a str,
    pub(crate) now: Instant,
    pub(crate) until: Instant,
}

/// Messages of one account that nobody else may send until the lease ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Claims {
    /// The account's version when they were claimed: another than the one at hand means that the
    /// account was changed, and must be read again.
    pub(crate) account_version: i64,
    /// In the order in which they are to be sent: by priority, then first come first served.
    pub(crate) messages: Vec<Claimed>,
}

/// A message claimed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Claimed {
    /// Names it in storage.
    pub(crate) seq: i64,
    pub(crate) account: AccountKey,
    pub(crate) id: String,
    pub(crate) priority: u8,
    /// What it costs where recipients are counted.
    pub(crate) recipients: u32,
    /// This one included.
    pub(crate) attempts: u32,
    pub(crate) created_at: Instant,
}

/// An account stops until an instant; the later of this and what is noted already wins. It is
/// not noted if the account was changed since `version`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pause {
    pub(crate) account: AccountKey,
    pub(crate) version: i64,
    pub(crate) until: Instant,
    pub(crate) scope: PauseScope,
    pub(crate) cause: PauseCause,
}

/// Which messages a pause holds back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PauseScope {
    All,
    /// All but priority 0, for which a share of the limits is kept.
    Ordinary,
}

/// Why an account stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PauseCause {
    /// Its limits: counted in `gmp_rate_limited_total`.
    Limit,
    /// Its server asked for it.
    Server,
}

/// What became of a claimed message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finish<'a> {
    pub(crate) claimed: &'a Claimed,
    pub(crate) instance: &'a str,
    /// The decision's instant that let it begin.
    pub(crate) started_at: Instant,
    pub(crate) finished_at: Instant,
    pub(crate) smtp_code: Option<u16>,
    /// What the server said, or what went wrong. Kept to its first 1,000 characters.
    pub(crate) smtp_text: String,
    pub(crate) outcome: Outcome,
}

/// How an attempt ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Final.
    Sent,
    /// Final: `last_error` is the reason; the key's quota is due back.
    Failed { reason: String },
    /// Final, and not an attempt at all (none is counted or logged): the limit refused and the
    /// account says reject, or the cost can never fit. Counted as rate limited.
    RateLimited { reason: String },
    /// Deferred until `at`.
    Retry { at: Instant, reason: String },
    /// Back in its place, and the account stops.
    Throttled { pause: Pause, reason: String },
}

/// Whether an outcome was noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finished {
    Noted,
    /// The lease had ended and the message is somebody else's by now. The attempt is logged.
    Lost,
}

/// Something that was moved back among the waiting, per account.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Moved {
    pub(crate) accounts: Vec<AccountKey>,
    pub(crate) messages: usize,
}

/// A key's quota to be given back, by its receipt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RefundDue {
    pub(crate) seq: i64,
    pub(crate) receipt: String,
}

/// Calls the same method of whichever it is.
macro_rules! each {
    ($queue:expr, $one:ident => $call:expr) => {
        match $queue {
            Queue::Sqlite($one) => $call,
            Queue::Postgres($one) => $call,
        }
    };
}

impl Queue {
    /// Opens what belongs to a store's URL, and brings its tables up to date.
    pub(crate) async fn open(store_url: &str) -> Result<Self, MailError> {
        if store_url.starts_with("postgres://") || store_url.starts_with("postgresql://") {
            return Ok(Self::Postgres(Postgres::open(store_url).await?));
        }
        match store_url.strip_prefix("sqlite:") {
            Some(path) => Ok(Self::Sqlite(Sqlite::open(Some(Path::new(path)))?)),
            None if store_url == "memory:" => Ok(Self::Sqlite(Sqlite::open(None)?)),
            None => Err(MailError::unavailable("the mail relay needs a store of its own kind")),
        }
    }
}

/// What the dispatcher asks.
impl Queue {
    /// Accounts that have a message to send now: one waiting, its tenant active, the account not
    /// paused. Costs as many look-ups as there are accounts, however long the backlog is.
    pub(crate) async fn accounts_with_work(
        &self,
        now: Instant,
    ) -> Result<Vec<AccountKey>, MailError> {
        each!(self, queue => queue.accounts_with_work(now).await)
    }

    /// The next instant after which there may be something to do: a deferred message falls due, a
    /// paused account with mail resumes, a lease ends. Possibly in the past.
    pub(crate) async fn next_due(&self, now: Instant) -> Result<Option<Instant>, MailError> {
        each!(self, queue => queue.next_due(now).await)
    }

    /// Takes up to `limit` messages of the account in one transaction: leased, attempts counted.
    /// Rows that another instance is taking are passed over. `None`: no such account, it is
    /// paused, or its tenant is suspended.
    pub(crate) async fn claim(
        &self,
        account: &AccountKey,
        lease: Lease<'_>,
        limit: u32,
    ) -> Result<Option<Claims>, MailError> {
        each!(self, queue => queue.claim(account, lease, limit).await)
    }

    /// Gives claimed messages back untried, and notes why in the same transaction: their attempt
    /// is not counted, their place in the order is kept. Those no longer ours are passed over.
    pub(crate) async fn release(
        &self,
        instance: &str,
        claimed: &[Claimed],
        pause: Option<&Pause>,
    ) -> Result<(), MailError> {
        each!(self, queue => queue.release(instance, claimed, pause).await)
    }

    /// Notes an outcome: message, counts, `send_log`, the tenant's report, the refund that is due,
    /// and the account's pause, in one transaction. What is final drops the content.
    pub(crate) async fn finish(&self, finish: &Finish<'_>) -> Result<Finished, MailError> {
        each!(self, queue => queue.finish(finish).await)
    }

    /// Stops an account, with no message at hand.
    pub(crate) async fn pause_account(&self, pause: &Pause) -> Result<(), MailError> {
        each!(self, queue => queue.pause_account(pause).await)
    }

    /// Puts up to `limit` messages whose lease has ended back in their places, each with an
    /// `unknown` attempt in `send_log`.
    pub(crate) async fn recover_expired(
        &self,
        now: Instant,
        limit: u32,
    ) -> Result<Moved, MailError> {
        each!(self, queue => queue.recover_expired(now, limit).await)
    }

    /// Puts up to `limit` deferred messages that are due among the waiting.
    pub(crate) async fn promote_due(&self, now: Instant, limit: u32) -> Result<Moved, MailError> {
        each!(self, queue => queue.promote_due(now, limit).await)
    }

    /// What is to be sent. `None`: the message is gone or final.
    pub(crate) async fn load_content(&self, seq: i64) -> Result<Option<Content>, MailError> {
        let bytes = each!(self, queue => queue.load_content(seq).await)?;
        bytes.map(|bytes| records::decode_content(&bytes)).transpose()
    }

    /// Receipts whose quota is to be given back: messages that failed for good or were deleted.
    pub(crate) async fn refunds_due(&self, limit: u32) -> Result<Vec<RefundDue>, MailError> {
        each!(self, queue => queue.refunds_due(limit).await)
    }

    /// They were given back (a receipt given back twice is given back once).
    pub(crate) async fn refunds_done(&self, seqs: &[i64]) -> Result<(), MailError> {
        each!(self, queue => queue.refunds_done(seqs).await)
    }
}

/// What the reporter asks.
impl Queue {
    /// Leases the reports of one tenant that has some due, oldest first: only one instance reports
    /// to a tenant at a time. `None`: there is no such tenant now.
    pub(crate) async fn reports_claim(
        &self,
        lease: Lease<'_>,
        limit: u32,
    ) -> Result<Option<ReportClaim>, MailError> {
        each!(self, queue => queue.reports_claim(lease, limit).await)
    }

    /// The tenant took them: removed, the lease ended, failures forgotten.
    pub(crate) async fn reports_done(
        &self,
        tenant_id: &str,
        instance: &str,
        reports: &[Report],
    ) -> Result<(), MailError> {
        each!(self, queue => queue.reports_done(tenant_id, instance, reports).await)
    }

    /// The tenant did not take them: the lease ended, a failure counted, again at `retry_at`.
    pub(crate) async fn reports_failed(
        &self,
        tenant_id: &str,
        instance: &str,
        retry_at: Instant,
    ) -> Result<(), MailError> {
        each!(self, queue => queue.reports_failed(tenant_id, instance, retry_at).await)
    }

    /// When there may be reports to send; possibly in the past. `None`: there are none at all.
    pub(crate) async fn reports_due_at(&self) -> Result<Option<Instant>, MailError> {
        each!(self, queue => queue.reports_due_at().await)
    }
}

/// What the facade asks.
impl Queue {
    /// Makes or changes a tenant; `true` if it is new.
    pub(crate) async fn put_tenant(&self, tenant: &TenantRecord) -> Result<bool, MailError> {
        each!(self, queue => queue.put_tenant(tenant).await)
    }

    pub(crate) async fn tenants(&self) -> Result<Vec<Tenant>, MailError> {
        each!(self, queue => queue.tenants().await)
    }

    pub(crate) async fn tenant(&self, id: &str) -> Result<Option<TenantRecord>, MailError> {
        each!(self, queue => queue.tenant(id).await)
    }

    /// Removes a tenant with its accounts and keys. It must have no messages left.
    pub(crate) async fn delete_tenant(&self, id: &str) -> Result<(), MailError> {
        each!(self, queue => queue.delete_tenant(id).await)
    }

    /// The new token replaces the one before.
    pub(crate) async fn set_tenant_token(&self, id: &str, hash: &[u8]) -> Result<bool, MailError> {
        each!(self, queue => queue.set_tenant_token(id, hash).await)
    }

    pub(crate) async fn tenant_of_token(&self, hash: &[u8]) -> Result<Option<String>, MailError> {
        each!(self, queue => queue.tenant_of_token(hash).await)
    }

    /// Makes or changes an account, and clears its pauses; `true` if it is new.
    pub(crate) async fn put_account(
        &self,
        account: &AccountRecord,
        now: Instant,
    ) -> Result<bool, MailError> {
        each!(self, queue => queue.put_account(account, now).await)
    }

    pub(crate) async fn account(
        &self,
        key: &AccountKey,
    ) -> Result<Option<AccountRecord>, MailError> {
        each!(self, queue => queue.account(key).await)
    }

    /// Of one tenant, or of all.
    pub(crate) async fn accounts(
        &self,
        tenant_id: Option<&str>,
    ) -> Result<Vec<AccountRecord>, MailError> {
        each!(self, queue => queue.accounts(tenant_id).await)
    }

    /// `false`: there is none. A conflict if it has unsent messages.
    pub(crate) async fn delete_account(&self, key: &AccountKey) -> Result<bool, MailError> {
        each!(self, queue => queue.delete_account(key).await)
    }

    /// A new key; a conflict if its name is taken within the tenant.
    pub(crate) async fn put_key(&self, key: &ApiKey, hash: &[u8]) -> Result<(), MailError> {
        each!(self, queue => queue.put_key(key, hash).await)
    }

    /// Of one tenant, or of all.
    pub(crate) async fn keys(&self, tenant_id: Option<&str>) -> Result<Vec<ApiKey>, MailError> {
        each!(self, queue => queue.keys(tenant_id).await)
    }

    pub(crate) async fn key(&self, id: &str) -> Result<Option<ApiKey>, MailError> {
        each!(self, queue => queue.key(id).await)
    }

    /// With the hash it is known by.
    pub(crate) async fn key_of_hash(
        &self,
        hash: &[u8],
    ) -> Result<Option<(ApiKey, Vec<u8>)>, MailError> {
        each!(self, queue => queue.key_of_hash(hash).await)
    }

    /// `false`: there is none.
    pub(crate) async fn change_key(
        &self,
        id: &str,
        enabled: Option<bool>,
        daily_limit: Option<u64>,
    ) -> Result<bool, MailError> {
        each!(self, queue => queue.change_key(id, enabled, daily_limit).await)
    }

    pub(crate) async fn delete_key(&self, id: &str) -> Result<bool, MailError> {
        each!(self, queue => queue.delete_key(id).await)
    }

    /// Queues messages, all in one transaction, each by itself: one outcome per message, in order.
    pub(crate) async fn insert(
        &self,
        messages: Vec<MessageRecord>,
        now: Instant,
    ) -> Result<Vec<Inserted>, MailError> {
        each!(self, queue => queue.insert(messages, now).await)
    }

    /// Makes deferred messages due and forgets pauses of the accounts, so that all are tried now
    /// (limits still hold). Which accounts have mail now.
    pub(crate) async fn run_now(
        &self,
        selection: &Selection,
        now: Instant,
    ) -> Result<Moved, MailError> {
        each!(self, queue => queue.run_now(selection, now).await)
    }

    /// Holds a tenant, or one batch of it, also what is added to it later.
    pub(crate) async fn suspend(
        &self,
        tenant_id: &str,
        batch_code: Option<&str>,
    ) -> Result<u64, MailError> {
        each!(self, queue => queue.suspend(tenant_id, batch_code).await)
    }

    /// Lets go what [`Queue::suspend`] holds.
    pub(crate) async fn activate(
        &self,
        tenant_id: &str,
        batch_code: Option<&str>,
        now: Instant,
    ) -> Result<u64, MailError> {
        each!(self, queue => queue.activate(tenant_id, batch_code, now).await)
    }

    /// Removes up to `limit` messages with all that belongs to them, but those being sent now.
    /// What was never sent is due back to its key.
    pub(crate) async fn delete_messages(
        &self,
        selection: &Selection,
        limit: u32,
    ) -> Result<u64, MailError> {
        each!(self, queue => queue.delete_messages(selection, limit).await)
    }

    /// Removes up to `limit` messages that were sent or failed before an instant.
    pub(crate) async fn cleanup(
        &self,
        tenant_id: Option<&str>,
        before: Instant,
        limit: u32,
    ) -> Result<u64, MailError> {
        each!(self, queue => queue.cleanup(tenant_id, before, limit).await)
    }

    /// A page of messages after `after`, in the order they came, with the name of each row.
    pub(crate) async fn messages(
        &self,
        query: &MessageQuery,
        after: i64,
        now: Instant,
    ) -> Result<Vec<(i64, MessageRow)>, MailError> {
        each!(self, queue => queue.messages(query, after, now).await)
    }

    /// Attempts to send one message, in order.
    pub(crate) async fn attempts(
        &self,
        tenant_id: &str,
        message_id: &str,
    ) -> Result<Vec<Attempt>, MailError> {
        each!(self, queue => queue.attempts(tenant_id, message_id).await)
    }

    /// Per account, from counters that are kept with every change: no backlog is counted.
    pub(crate) async fn counts(
        &self,
        tenant_id: Option<&str>,
        now: Instant,
    ) -> Result<Vec<Counts>, MailError> {
        each!(self, queue => queue.counts(tenant_id, now).await)
    }

    /// A value kept for all instances; the first one given stays. What it is.
    pub(crate) async fn setting(
        &self,
        name: &str,
        first: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>, MailError> {
        each!(self, queue => queue.setting(name, first).await)
    }

    /// What is not answered yet is, and then the file is closed.
    pub(crate) fn close(&self) {
        each!(self, queue => queue.close());
    }
}
