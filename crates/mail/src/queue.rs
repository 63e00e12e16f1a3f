//! Where everything the relay keeps is kept: SQLite beside the embedded store, or PostgreSQL.
//!
//! Both are asked by the same methods, and each method is one transaction: it happened as a whole
//! and durably when it answers, or not at all. Time is always an argument. Nothing here decides
//! about limits; that is the gate's.

mod claims;
mod db;
mod desk;
mod holding;
mod intake;
mod keys;
mod listing;
mod outcome;
mod owners;
mod postgres;
mod records;
mod removed;
mod reports;
mod sqlite;
mod tally;
#[cfg(test)]
mod tests;
mod transaction;
mod work;

use std::path::Path;

use tollgate::Instant;

use crate::error::MailError;
use crate::model::{AccountKey, Content, Report};
use db::values;
use transaction::transaction;

pub(crate) use claims::{
    Claimed, Claims, Finish, Finished, Lease, Moved, OpenClaim, Outcome, Pause, PauseCause,
    PauseScope, RefundDue,
};
pub(crate) use postgres::Postgres;
pub(crate) use records::{
    AccountRecord, Inserted, MessageRecord, NotWritten, ReportClaim, ReportSecret, derived_id,
    encode_content,
};
pub(crate) use sqlite::Sqlite;

/// One of the two.
#[derive(Debug)]
pub(crate) enum Queue {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl Queue {
    /// Opens what belongs to a store's URL, and brings its tables up to date.
    pub(crate) async fn open(store_url: &str) -> Result<Self, MailError> {
        if store_url.starts_with("postgres://") || store_url.starts_with("postgresql://") {
            return Ok(Self::Postgres(Postgres::open(store_url).await?));
        }
        match tollgate::sqlite_path(store_url) {
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
    /// paused account with mail resumes, a lease ends. What is due already is possibly in the past.
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

    /// Up to `limit` claims, those first whose lease ends first: of other instances all, of this one
    /// those whose lease has ended, but none that it has under way: its leases end early when the
    /// clock is set ahead.
    pub(crate) async fn open_claims(
        &self,
        now: Instant,
        instance: &str,
        under_way: &[i64],
        limit: u32,
    ) -> Result<Vec<OpenClaim>, MailError> {
        transaction!(read self, [instance = instance.to_owned(), under_way = under_way.to_vec()]
            db => work::open_claims(db, now, &instance, &under_way, limit))
    }

    /// Puts messages back in their places whose instance is dead, each with an `unknown` attempt in
    /// `send_log`; but those whose claim is not the same any more.
    pub(crate) async fn take_over(
        &self,
        claims: &[OpenClaim],
        now: Instant,
    ) -> Result<Moved, MailError> {
        transaction!(write self, [claims = claims.to_vec()]
            db => work::take_over(db, &claims, now))
    }

    /// Puts up to `limit` deferred messages that are due among the waiting.
    pub(crate) async fn promote_due(&self, now: Instant, limit: u32) -> Result<Moved, MailError> {
        transaction!(write self, [] db => work::promote_due(db, now, limit))
    }

    /// The digest of a message that was accepted. `None`: there is none, or it was removed long ago.
    pub(crate) async fn digest(
        &self,
        tenant_id: &str,
        id: &str,
    ) -> Result<Option<Vec<u8>>, MailError> {
        let (tenant_id, id) = (tenant_id.to_owned(), id.to_owned());
        transaction!(read self, [] db => removed::digest(db, &tenant_id, &id))
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

    /// Forgets up to `limit` removed messages that no retry can come for any more. How many.
    pub(crate) async fn forget_removed(&self, now: Instant, limit: u32) -> Result<u64, MailError> {
        transaction!(write self, [] db => removed::forget(db, now, limit))
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

    /// The tenant took them: removed, the lease ended, failures forgotten. Who was not reported to
    /// for longer comes first now.
    pub(crate) async fn reports_done(
        &self,
        tenant_id: &str,
        instance: &str,
        reports: &[Report],
        now: Instant,
    ) -> Result<(), MailError> {
        let seqs: Vec<i64> = reports.iter().map(|report| report.seq).collect();
        transaction!(write self,
            [tenant_id = tenant_id.to_owned(), instance = instance.to_owned()]
            db => reports::done(db, &tenant_id, &instance, &seqs, now))
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
