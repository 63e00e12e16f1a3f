//! `Mail`: the relay, opened beside a gate.

use std::sync::Arc;

use tollgate::{Instant, Tollgate};

use crate::error::{MailError, store_error};
use crate::model::{Account, AccountKey, ReportBatch};
use crate::nudges::Nudges;
use crate::queue::{Lease, Queue};
use crate::secrets::Vault;
use crate::settings::MailSettings;

/// How many refunds one settling does, at most.
const REFUNDS_AT_ONCE: u32 = 100;

/// The mail relay. Cheap to clone; all clones share one queue.
#[derive(Clone, Debug)]
pub struct Mail {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) gate: Tollgate,
    pub(crate) queue: Queue,
    pub(crate) settings: MailSettings,
    pub(crate) vault: Vault,
    pub(crate) nudges: Nudges,
    /// Names this run in leases and in `send_log`.
    pub(crate) instance: String,
}

impl Mail {
    /// Opens the relay's own storage beside the gate's store: `sqlite:tollgate.db` has a
    /// `tollgate-mail.db`, `memory:` has nothing, PostgreSQL has tables in the same schema. Sends
    /// nothing yet.
    ///
    /// An error if the key that seals passwords is missing or not the one they were sealed with.
    pub async fn open(
        gate: Tollgate,
        store_url: &str,
        settings: MailSettings,
    ) -> Result<Self, MailError> {
        let queue = Queue::open(store_url).await?;
        let vault = Vault::open(&queue, store_url, &settings.key).await?;
        let instance = match settings.instance.as_str() {
            "" => format!("{}-{}", std::process::id(), crate::secrets::random_id()?),
            given => given.to_owned(),
        };
        let nudges = Nudges::default();
        Ok(Self { inner: Arc::new(Inner { gate, queue, settings, vault, nudges, instance }) })
    }

    /// The clock that everything goes by.
    pub fn now(&self) -> Instant {
        self.inner.gate.now()
    }

    /// An error if the relay's storage cannot answer.
    pub async fn ping(&self) -> Result<(), MailError> {
        self.inner.queue.setting("ping", None).await.map(drop)
    }

    /// Closes the storage. Everything answered is durable already.
    pub fn close(&self) {
        self.inner.queue.close();
    }
}

/// For the dispatcher and the reporter.
impl Inner {
    /// An account with its password opened.
    pub(crate) async fn account_for_sending(
        &self,
        key: &AccountKey,
    ) -> Result<Option<Account>, MailError> {
        let Some(record) = self.queue.account(key).await? else { return Ok(None) };
        let mut account = record.account;
        if let Some(sealed) = record.password_sealed {
            account.password = Some(self.vault.open_password(key, &sealed)?);
        }
        Ok(Some(account))
    }

    /// Reports that are due to one tenant, leased to this instance from `now` until `until`.
    pub(crate) async fn claim_reports(
        &self,
        now: Instant,
        until: Instant,
        limit: u32,
    ) -> Result<Option<ReportBatch>, MailError> {
        let lease = Lease { instance: &self.instance, now, until };
        let Some(claim) = self.queue.reports_claim(lease, limit).await? else { return Ok(None) };
        let secret = self.vault.open_report_secret(&claim.tenant_id, &claim.secret_sealed)?;
        Ok(Some(ReportBatch {
            secret,
            tenant_id: claim.tenant_id,
            url: claim.url,
            failures: claim.failures,
            reports: claim.reports,
        }))
    }

    /// Gives back the quota of messages that failed for good, once each. Called after a failure
    /// and now and then, so that what a crash left is done too. How many.
    pub(crate) async fn settle_refunds(&self) -> Result<usize, MailError> {
        let due = self.queue.refunds_due(REFUNDS_AT_ONCE).await?;
        let mut done = Vec::with_capacity(due.len());
        for refund in due {
            match self.gate.refund(&refund.receipt).await {
                Ok(_) => {}
                // Not this store's: the gate's store was replaced under the relay. Nothing to do.
                Err(tollgate::Error::BadReceipt) => {
                    tracing::warn!("a receipt is not of this store; its quota stays spent");
                }
                Err(error) => return Err(store_error(error).into()),
            }
            done.push(refund.seq);
        }
        if !done.is_empty() {
            self.queue.refunds_done(&done).await?;
        }
        Ok(done.len())
    }
}
