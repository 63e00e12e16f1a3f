//! Where everything the relay keeps is kept: SQLite beside the embedded store, or PostgreSQL.
//!
//! Both are asked by the same methods, and each method is one transaction: it happened as a whole
//! and durably when it answers, or not at all. Time is always an argument. Nothing here decides
//! about limits; that is the gate's.

mod db;
mod holding;
mod intake;
mod keys;
mod listing;
mod outcome;
mod owners;
mod postgres;
mod records;
mod reports;
mod sqlite;
mod tally;
#[cfg(test)]
mod tests;
mod work;

use std::path::Path;
use std::sync::Arc;

use tollgate::{Instant, StoreErrorKind};

use db::{Db, run_now, values};

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

/// Messages that one transaction of a long command moves.
const CHUNK: u32 = 1000;

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

/// Runs `$work` on `$db` in a transaction of whichever database, with the owned copies that
/// SQLite's thread needs made first.
macro_rules! transaction {
    ($how:ident $queue:expr, [$($name:ident = $owned:expr),*] $db:ident => $work:expr) => {{
        $(let $name = $owned;)*
        match $queue {
            Queue::Sqlite(sqlite) => sqlite.$how(move |$db| run_now(async { $work.await })).await,
            Queue::Postgres(postgres) => {
                let session = postgres.$how().await?;
                let worked = {
                    let $db = &Db::Postgres(&session);
                    $work.await
                };
                match worked {
                    Ok(value) => session.commit().await.map(|()| value),
                    Err(error) => {
                        session.roll_back().await;
                        Err(error)
                    }
                }
            }
        }
    }};
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
        transaction!(read self, [] db => work::accounts_with_work(db, now))
    }

    /// The next instant after which there may be something to do: a deferred message falls due, a
    /// paused account with mail resumes, a lease ends. Possibly in the past.
    pub(crate) async fn next_due(&self, now: Instant) -> Result<Option<Instant>, MailError> {
        transaction!(read self, [] db => work::next_due(db, now))
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
        let (now, until) = (lease.now, lease.until);
        transaction!(write self, [account = account.clone(), instance = lease.instance.to_owned()]
            db => work::claim(db, &account, Lease { instance: &instance, now, until }, limit))
    }

    /// Gives claimed messages back untried, and notes why in the same transaction: their attempt
    /// is not counted, their place in the order is kept. Those no longer ours are passed over.
    pub(crate) async fn release(
        &self,
        instance: &str,
        claimed: &[Claimed],
        pause: Option<&Pause>,
    ) -> Result<(), MailError> {
        transaction!(write self, [instance = instance.to_owned(), claimed = claimed.to_vec(), pause = pause.cloned()] db => work::release(db, &instance, &claimed, pause.as_ref()))
    }

    /// Notes an outcome: message, counts, `send_log`, the tenant's report, the refund that is due,
    /// and the account's pause, in one transaction. What is final drops the content.
    pub(crate) async fn finish(&self, finish: &Finish<'_>) -> Result<Finished, MailError> {
        let (started_at, finished_at) = (finish.started_at, finish.finished_at);
        let (smtp_code, smtp_text) = (finish.smtp_code, finish.smtp_text.clone());
        transaction!(write self,
            [claimed = finish.claimed.clone(), instance = finish.instance.to_owned(),
             outcome = finish.outcome.clone()]
            db => outcome::finish(db, &Finish { claimed: &claimed, instance: &instance, started_at,
                finished_at, smtp_code, smtp_text, outcome }))
    }

    /// Stops an account, with no message at hand.
    pub(crate) async fn pause_account(&self, pause: &Pause) -> Result<(), MailError> {
        transaction!(write self, [pause = pause.clone()] db => work::pause_account(db, &pause))
    }

    /// Puts up to `limit` messages whose lease has ended back in their places, each with an
    /// `unknown` attempt in `send_log`.
    pub(crate) async fn recover_expired(
        &self,
        now: Instant,
        limit: u32,
    ) -> Result<Moved, MailError> {
        transaction!(write self, [] db => work::recover_expired(db, now, limit))
    }

    /// Puts up to `limit` deferred messages that are due among the waiting.
    pub(crate) async fn promote_due(&self, now: Instant, limit: u32) -> Result<Moved, MailError> {
        transaction!(write self, [] db => work::promote_due(db, now, limit))
    }

    /// What is to be sent. `None`: the message is gone or final.
    pub(crate) async fn load_content(&self, seq: i64) -> Result<Option<Content>, MailError> {
        let sql = "select bytes from mail_content where message_seq = ?1";
        let row = transaction!(read self, [] db => db.row(sql, values![seq]))?;
        let bytes = row.and_then(|row| row.opt_bytes(0));
        bytes.map(|bytes| records::decode_content(&bytes)).transpose()
    }

    /// Receipts whose quota is to be given back: messages that failed for good or were deleted.
    pub(crate) async fn refunds_due(&self, limit: u32) -> Result<Vec<RefundDue>, MailError> {
        transaction!(read self, [] db => reports::refunds_due(db, limit))
    }

    /// They were given back (a receipt given back twice is given back once).
    pub(crate) async fn refunds_done(&self, seqs: &[i64]) -> Result<(), MailError> {
        transaction!(write self, [seqs = seqs.to_vec()] db => reports::refunds_done(db, &seqs))
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
        let (now, until) = (lease.now, lease.until);
        transaction!(write self, [instance = lease.instance.to_owned()]
            db => reports::claim(db, Lease { instance: &instance, now, until }, limit))
    }

    /// The tenant took them: removed, the lease ended, failures forgotten.
    pub(crate) async fn reports_done(
        &self,
        tenant_id: &str,
        instance: &str,
        reports: &[Report],
    ) -> Result<(), MailError> {
        let seqs: Vec<i64> = reports.iter().map(|report| report.seq).collect();
        transaction!(write self,
            [tenant_id = tenant_id.to_owned(), instance = instance.to_owned()]
            db => reports::done(db, &tenant_id, &instance, &seqs))
    }

    /// The tenant did not take them: the lease ended, a failure counted, again at `retry_at`.
    pub(crate) async fn reports_failed(
        &self,
        tenant_id: &str,
        instance: &str,
        retry_at: Instant,
    ) -> Result<(), MailError> {
        transaction!(write self, [tenant_id = tenant_id.to_owned(), instance = instance.to_owned()] db => reports::failed(db, &tenant_id, &instance, retry_at))
    }

    /// When there may be reports to send; possibly in the past. `None`: there are none at all.
    pub(crate) async fn reports_due_at(&self) -> Result<Option<Instant>, MailError> {
        transaction!(read self, [] db => reports::due_at(db))
    }
}

/// What the facade asks.
impl Queue {
    /// Makes or changes a tenant; `true` if it is new.
    pub(crate) async fn put_tenant(&self, tenant: &TenantRecord) -> Result<bool, MailError> {
        transaction!(write self, [tenant = tenant.clone()] db => owners::put_tenant(db, &tenant))
    }

    pub(crate) async fn tenants(&self) -> Result<Vec<Tenant>, MailError> {
        transaction!(read self, [] db => owners::tenants(db))
    }

    pub(crate) async fn tenant(&self, id: &str) -> Result<Option<TenantRecord>, MailError> {
        transaction!(read self, [id = id.to_owned()] db => owners::tenant(db, &id))
    }

    /// Removes a tenant with its accounts and keys. It must have no messages left.
    pub(crate) async fn delete_tenant(&self, id: &str) -> Result<(), MailError> {
        transaction!(write self, [id = id.to_owned()] db => owners::delete_tenant(db, &id))
    }

    /// The new token replaces the one before.
    pub(crate) async fn set_tenant_token(&self, id: &str, hash: &[u8]) -> Result<bool, MailError> {
        transaction!(write self, [id = id.to_owned(), hash = hash.to_vec()] db => owners::set_tenant_token(db, &id, &hash))
    }

    pub(crate) async fn tenant_of_token(&self, hash: &[u8]) -> Result<Option<String>, MailError> {
        transaction!(read self, [hash = hash.to_vec()] db => owners::tenant_of_token(db, &hash))
    }

    /// Makes or changes an account, and clears its pauses; `true` if it is new.
    pub(crate) async fn put_account(
        &self,
        account: &AccountRecord,
        now: Instant,
    ) -> Result<bool, MailError> {
        transaction!(write self, [account = account.clone()] db => owners::put_account(db, &account, now))
    }

    pub(crate) async fn account(
        &self,
        key: &AccountKey,
    ) -> Result<Option<AccountRecord>, MailError> {
        transaction!(read self, [key = key.clone()] db => owners::account(db, &key))
    }

    /// Of one tenant, or of all.
    pub(crate) async fn accounts(
        &self,
        tenant_id: Option<&str>,
    ) -> Result<Vec<AccountRecord>, MailError> {
        transaction!(read self, [tenant_id = tenant_id.map(ToOwned::to_owned)] db => owners::accounts(db, tenant_id.as_deref()))
    }

    /// `false`: there is none. A conflict if it has unsent messages.
    pub(crate) async fn delete_account(&self, key: &AccountKey) -> Result<bool, MailError> {
        transaction!(write self, [key = key.clone()] db => owners::delete_account(db, &key))
    }

    /// A new key.
    pub(crate) async fn put_key(&self, key: &ApiKey, hash: &[u8]) -> Result<(), MailError> {
        transaction!(write self, [key = key.clone(), hash = hash.to_vec()] db => keys::put_key(db, &key, &hash))
    }

    /// Of one tenant, or of all.
    pub(crate) async fn keys(&self, tenant_id: Option<&str>) -> Result<Vec<ApiKey>, MailError> {
        transaction!(read self, [tenant_id = tenant_id.map(ToOwned::to_owned)] db => keys::keys(db, tenant_id.as_deref()))
    }

    pub(crate) async fn key(&self, id: &str) -> Result<Option<ApiKey>, MailError> {
        transaction!(read self, [id = id.to_owned()] db => keys::key(db, &id))
    }

    /// With the hash it is known by.
    pub(crate) async fn key_of_hash(
        &self,
        hash: &[u8],
    ) -> Result<Option<(ApiKey, Vec<u8>)>, MailError> {
        transaction!(read self, [hash = hash.to_vec()] db => keys::key_of_hash(db, &hash))
    }

    /// `false`: there is none.
    pub(crate) async fn change_key(
        &self,
        id: &str,
        enabled: Option<bool>,
        daily_limit: Option<u64>,
    ) -> Result<bool, MailError> {
        transaction!(write self, [id = id.to_owned()] db => keys::change_key(db, &id, enabled, daily_limit))
    }

    pub(crate) async fn delete_key(&self, id: &str) -> Result<bool, MailError> {
        transaction!(write self, [id = id.to_owned()] db => keys::delete_key(db, &id))
    }

    /// Queues messages, all in one transaction, each by itself: one outcome per message, in order.
    pub(crate) async fn insert(
        &self,
        messages: Vec<MessageRecord>,
        now: Instant,
    ) -> Result<Vec<Inserted>, MailError> {
        let messages = Arc::new(messages);
        // Two batches with the same ids in another order may stop each other: one goes again.
        for _ in 0..2 {
            match self.try_insert(messages.clone(), now).await {
                Err(MailError::Store(error)) if error.kind() == StoreErrorKind::Contended => {}
                inserted => return inserted,
            }
        }
        self.try_insert(messages, now).await
    }

    async fn try_insert(
        &self,
        messages: Arc<Vec<MessageRecord>>,
        now: Instant,
    ) -> Result<Vec<Inserted>, MailError> {
        transaction!(write self, [] db => intake::insert(db, &messages, now))
    }

    /// Makes deferred messages due and forgets pauses of the accounts, so that all are tried now
    /// (limits still hold). Which accounts have mail now.
    pub(crate) async fn run_now(&self, selection: &Selection) -> Result<Moved, MailError> {
        let mut moved = Moved::default();
        loop {
            let chunk = transaction!(write self, [selection = selection.clone()]
                db => holding::advance(db, &selection, CHUNK))?;
            moved.messages += chunk.messages;
            if chunk.messages < CHUNK as usize || selection.ids.is_some() {
                break;
            }
        }
        let selection = selection.clone();
        moved.accounts = transaction!(write self, [] db => holding::resume_accounts(
            db, &selection.tenant_id, selection.account_id.as_deref()))?;
        Ok(moved)
    }

    /// Holds a tenant, or one batch of it, also what is added to it later.
    pub(crate) async fn suspend(
        &self,
        tenant_id: &str,
        batch_code: Option<&str>,
    ) -> Result<u64, MailError> {
        let tenant_id = tenant_id.to_owned();
        let Some(batch) = batch_code.map(ToOwned::to_owned) else {
            return transaction!(write self, []
                db => holding::set_tenant_suspended(db, &tenant_id, true));
        };
        transaction!(write self, [tenant_id = tenant_id.clone(), batch = batch.clone()]
            db => holding::set_batch_suspended(db, &tenant_id, &batch, true))?;
        let mut held = 0;
        loop {
            let chunk = transaction!(write self, [tenant_id = tenant_id.clone(), batch = batch.clone()]
                db => holding::hold_batch(db, &tenant_id, &batch, CHUNK))?;
            held += chunk;
            if chunk < u64::from(CHUNK) {
                return Ok(held);
            }
        }
    }

    /// Lets go what [`Queue::suspend`] holds.
    pub(crate) async fn activate(
        &self,
        tenant_id: &str,
        batch_code: Option<&str>,
        now: Instant,
    ) -> Result<u64, MailError> {
        let tenant_id = tenant_id.to_owned();
        let Some(batch) = batch_code.map(ToOwned::to_owned) else {
            return transaction!(write self, []
                db => holding::set_tenant_suspended(db, &tenant_id, false));
        };
        transaction!(write self, [tenant_id = tenant_id.clone(), batch = batch.clone()]
            db => holding::set_batch_suspended(db, &tenant_id, &batch, false))?;
        let mut gone = 0;
        loop {
            let chunk = transaction!(write self, [tenant_id = tenant_id.clone(), batch = batch.clone()]
                db => holding::let_batch_go(db, &tenant_id, &batch, now, CHUNK))?;
            gone += chunk;
            if chunk < u64::from(CHUNK) {
                return Ok(gone);
            }
        }
    }

    /// Removes up to `limit` messages with all that belongs to them, but those being sent now.
    /// What was never sent is due back to its key.
    pub(crate) async fn delete_messages(
        &self,
        selection: &Selection,
        limit: u32,
    ) -> Result<u64, MailError> {
        transaction!(write self, [selection = selection.clone()] db => holding::delete_messages(db, &selection, limit))
    }

    /// Removes up to `limit` messages that were sent or failed before an instant.
    pub(crate) async fn cleanup(
        &self,
        tenant_id: Option<&str>,
        before: Instant,
        limit: u32,
    ) -> Result<u64, MailError> {
        transaction!(write self, [tenant_id = tenant_id.map(ToOwned::to_owned)] db => holding::cleanup(db, tenant_id.as_deref(), before, limit))
    }

    /// A page of messages after `after`, in the order they came, with the name of each row.
    pub(crate) async fn messages(
        &self,
        query: &MessageQuery,
        after: i64,
        now: Instant,
    ) -> Result<Vec<(i64, MessageRow)>, MailError> {
        transaction!(read self, [query = query.clone()] db => listing::messages(db, &query, after, now))
    }

    /// Attempts to send one message, in order.
    pub(crate) async fn attempts(
        &self,
        tenant_id: &str,
        message_id: &str,
    ) -> Result<Vec<Attempt>, MailError> {
        transaction!(read self, [tenant_id = tenant_id.to_owned(), message_id = message_id.to_owned()] db => listing::attempts(db, &tenant_id, &message_id))
    }

    /// Per account, from counters that are kept with every change: no backlog is counted.
    pub(crate) async fn counts(
        &self,
        tenant_id: Option<&str>,
        now: Instant,
    ) -> Result<Vec<Counts>, MailError> {
        transaction!(read self, [tenant_id = tenant_id.map(ToOwned::to_owned)] db => listing::counts(db, tenant_id.as_deref(), now))
    }

    /// A value kept for all instances; the first one given stays. What it is.
    pub(crate) async fn setting(
        &self,
        name: &str,
        first: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>, MailError> {
        let name = name.to_owned();
        match first.map(<[u8]>::to_vec) {
            Some(first) => {
                transaction!(write self, [] db => keys::setting(db, &name, Some(&first)))
            }
            None => transaction!(read self, [] db => keys::setting(db, &name, None)),
        }
    }

    /// What is not answered yet is, and then the file is closed.
    pub(crate) fn close(&self) {
        match self {
            Self::Sqlite(sqlite) => sqlite.close(),
            Self::Postgres(postgres) => postgres.close(),
        }
    }
}
