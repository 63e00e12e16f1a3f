//! What the relay is about: tenants, accounts, API keys, messages and what becomes of them.
//!
//! Plain data. What callers give (`NewAccount`, `NewMessage`, …) is checked in `validate`; what
//! storage gives back is already valid.

mod account;
mod message;
mod report;

use tollgate::Instant;

use crate::settings::Secret;

pub use account::{Account, AccountKey, LimitBehavior, LimitUnit, NewAccount, Tls};
pub use message::{
    Added, Attachment, Attempt, Content, MessageQuery, MessageRow, NewMessage, Rejected,
    SendRequest, Sent, Status,
};
pub(crate) use report::{Report, ReportBatch};

/// Who mail is sent for: accounts, keys and messages belong to one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tenant {
    pub id: String,
    pub name: String,
    pub report_url: Option<String>,
    /// Its messages wait until it is activated.
    pub suspended: bool,
    /// Whether an access token was made for it.
    pub has_token: bool,
    pub created_at: Instant,
}

/// A tenant as it is given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewTenant {
    pub id: String,
    pub name: String,
    /// Where delivery reports are POSTed to. `None`: nowhere.
    pub report_url: Option<String>,
    /// Signs the reports. `None`: the one it has, or a new random one.
    pub report_secret: Option<Secret>,
}

/// What became of a tenant that was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantSaved {
    pub created: bool,
    /// The secret that signs reports, if one was made now: shown this once.
    pub report_secret: Option<Secret>,
}

/// A key for `/api/v1/send`. Its secret is known by its hash only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiKey {
    pub id: String,
    pub tenant_id: String,
    /// Sends through this account unless the request names another.
    pub account_id: String,
    pub name: String,
    /// Recipients a day.
    pub daily_limit: u64,
    /// The IANA zone whose midnight resets it.
    pub timezone: String,
    pub enabled: bool,
    pub created_at: Instant,
}

/// A key as it is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewApiKey {
    pub tenant_id: String,
    pub account_id: String,
    pub name: String,
    pub daily_limit: u64,
    pub timezone: String,
}

impl NewApiKey {
    pub const DEFAULT_DAILY_LIMIT: u64 = 15;
}

/// How a key stands today. Reading it adds nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usage {
    pub api_key_id: String,
    pub daily_limit: u64,
    pub emails_sent_today: u64,
    pub emails_remaining: u64,
    /// The key's next local midnight.
    pub reset_time: Instant,
}

/// Whose messages a command is about.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    pub tenant_id: String,
    /// Only those of this batch.
    pub batch_code: Option<String>,
    /// Only those of this account.
    pub account_id: Option<String>,
    /// Only these; `None`: all.
    pub ids: Option<Vec<String>>,
}

/// How much mail one account has, and what became of the rest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    pub tenant_id: String,
    pub account_id: String,
    /// Totals since the account was made.
    pub sent: u64,
    pub errors: u64,
    pub rate_limited: u64,
    /// Now: waiting or being sent.
    pub pending: u64,
    /// Now: waiting for an instant to come, their own or the account's.
    pub deferred: u64,
    /// Now: waiting to be activated.
    pub suspended: u64,
}

/// The relay at a glance, of one tenant or of all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RelayStatus {
    pub tenants: u64,
    pub accounts: u64,
    pub sent: u64,
    pub errors: u64,
    pub rate_limited: u64,
    pub pending: u64,
    pub deferred: u64,
    pub suspended: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_can_be_written_to_a_log() {
        let secret = || Some(Secret::new("open sesame"));
        let tenant = NewTenant { report_secret: secret(), ..NewTenant::default() };
        let mut account = NewAccount::new(AccountKey::new("acme", "main"), "127.0.0.1", 25);
        account.password = secret();
        let saved = TenantSaved { created: true, report_secret: secret() };
        let written = format!("{tenant:?} {account:?} {saved:?}");
        assert!(!written.contains("sesame"), "{written}");
    }
}
