//! What goes to storage and comes back from it, as neither callers nor the dispatcher see it.

use tollgate::Instant;

use crate::error::MailError;
use crate::model::{Account, AccountKey, Content, Report};
use crate::secrets;

/// What becomes of the secret that a tenant's reports are signed with, when the tenant is put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReportSecret {
    Kept,
    /// Sealed; replaces the one there is.
    Given(Vec<u8>),
    /// Sealed; for a tenant that has none yet.
    Made(Vec<u8>),
}

/// A tenant as it was put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TenantPut {
    pub(crate) created: bool,
    /// The one in force now.
    pub(crate) report_secret_sealed: Option<Vec<u8>>,
}

/// An account with its password, sealed. `account.password` is `None`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AccountRecord {
    pub(crate) account: Account,
    pub(crate) password_sealed: Option<Vec<u8>>,
}

/// A valid message on its way into the queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MessageRecord {
    pub(crate) account: AccountKey,
    pub(crate) id: String,
    pub(crate) priority: u8,
    pub(crate) recipients: u32,
    pub(crate) deferred_until: Option<Instant>,
    pub(crate) batch_code: Option<String>,
    /// What its key spent for it.
    pub(crate) receipt: Option<String>,
    /// Of everything the caller gave: the same id with another one is a mistake.
    pub(crate) digest: Vec<u8>,
    /// The same as versions before made it for a send: of what the account added as well.
    pub(crate) former_digest: Option<Vec<u8>>,
    pub(crate) content: Vec<u8>,
}

impl MessageRecord {
    /// Whether the same message may come again from a retry under an idempotency key.
    pub(super) fn is_under_idempotency_key(&self) -> bool {
        self.receipt.as_deref().is_some_and(|receipt| derived_id(receipt) == self.id)
    }
}

/// The id of a message that was sent under an idempotency key. A retry has the same receipt, as
/// long as the key is remembered: so it is the same message, and what a crash kept from being
/// queued is queued by the retry.
pub(crate) fn derived_id(receipt: &str) -> String {
    format!("msg_{}", &secrets::hex(&secrets::hash(receipt))[..32])
}

/// What became of one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inserted {
    New,
    /// The same message was there already.
    Again,
    /// Another message has this id.
    IdTaken,
    /// The tenant has no such account.
    NoAccount,
}

/// Why there is no outcome of a transaction.
#[derive(Clone, Debug)]
pub(crate) enum NotWritten {
    /// The database was not asked to keep anything, or says that it did not.
    Surely(MailError),
    /// The commit failed: what was written may be there, or appear yet.
    Perhaps(MailError),
}

impl From<MailError> for NotWritten {
    fn from(error: MailError) -> Self {
        Self::Surely(error)
    }
}

impl From<NotWritten> for MailError {
    fn from(not: NotWritten) -> Self {
        match not {
            NotWritten::Surely(error) | NotWritten::Perhaps(error) => error,
        }
    }
}

impl Inserted {
    /// What a message is that comes when one with its id and this digest was there before.
    pub(super) fn beside(digest: &[u8], message: &MessageRecord) -> Self {
        let is_same = digest == message.digest || message.former_digest.as_deref() == Some(digest);
        if is_same { Self::Again } else { Self::IdTaken }
    }
}

/// Reports of one tenant, its secret still sealed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReportClaim {
    pub(crate) tenant_id: String,
    pub(crate) url: String,
    pub(crate) secret_sealed: Vec<u8>,
    pub(crate) failures: u32,
    pub(crate) reports: Vec<Report>,
}

pub(crate) fn encode_content(content: &Content) -> Vec<u8> {
    serde_json::to_vec(content).expect("texts are always JSON")
}

pub(super) fn decode_content(bytes: &[u8]) -> Result<Content, MailError> {
    serde_json::from_slice(bytes).map_err(|error| {
        MailError::unavailable(format!("a message's content cannot be read: {error}"))
    })
}
