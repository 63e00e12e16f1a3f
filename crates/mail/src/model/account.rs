//! SMTP accounts: where mail goes, and how fast.

use serde::{Deserialize, Serialize};
use tollgate::Instant;

use crate::settings::Secret;

/// Names an account: ids are unique only within a tenant.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AccountKey {
    pub tenant_id: String,
    pub account_id: String,
}

impl AccountKey {
    pub fn new(tenant_id: impl Into<String>, account_id: impl Into<String>) -> Self {
        Self { tenant_id: tenant_id.into(), account_id: account_id.into() }
    }
}

/// What happens to a message over a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitBehavior {
    /// It waits until the limit has room.
    #[default]
    Defer,
    /// It ends in error `rate_limit_exceeded`.
    Reject,
}

/// What an account's limits count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitUnit {
    #[default]
    Messages,
    /// What providers count: to, cc and bcc.
    Recipients,
}

/// How the connection is made secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tls {
    /// Not at all.
    None,
    /// By STARTTLS, or not sent at all.
    Starttls,
    /// From the first byte.
    Implicit,
}

/// An account as it is given. `POST /account` with the same id replaces it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewAccount {
    pub id: String,
    pub tenant_id: String,
    pub host: String,
    pub port: u16,
    pub user: Option<String>,
    /// `None` keeps the one it has, as long as host, port and user stay the same; empty: none.
    pub password: Option<Secret>,
    /// Who mail sent with an API key is from. `None`: the user, if that is an address.
    pub from_address: Option<String>,
    pub use_tls: bool,
    /// Overrules `use_tls` and what the port suggests.
    pub tls: Option<Tls>,
    /// Authority to trust for this server, in PEM, besides the public ones.
    pub root_cert: Option<String>,
    /// Lets the password travel unencrypted to another machine.
    pub allow_plaintext_auth: bool,
    /// 0 or absent: no such limit. The same for the other two.
    pub limit_per_minute: Option<u64>,
    pub limit_per_hour: Option<u64>,
    pub limit_per_day: Option<u64>,
    pub limit_behavior: LimitBehavior,
    pub limit_unit: LimitUnit,
    /// Percent of each limit that only priority 0 may use.
    pub priority0_share: u8,
    /// Messages sent at once; 1 keeps their order.
    pub concurrency: u16,
}

impl NewAccount {
    /// With TLS as the port suggests it, no user, no limits, one message at a time.
    pub fn new(key: AccountKey, host: impl Into<String>, port: u16) -> Self {
        let AccountKey { tenant_id, account_id } = key;
        Self {
            id: account_id,
            tenant_id,
            host: host.into(),
            port,
            user: None,
            password: None,
            from_address: None,
            use_tls: true,
            tls: None,
            root_cert: None,
            allow_plaintext_auth: false,
            limit_per_minute: None,
            limit_per_hour: None,
            limit_per_day: None,
            limit_behavior: LimitBehavior::default(),
            limit_unit: LimitUnit::default(),
            priority0_share: 0,
            concurrency: 1,
        }
    }
}

/// An account as it is. Valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Account {
    pub key: AccountKey,
    pub host: String,
    pub port: u16,
    pub user: Option<String>,
    /// Opened only for the dispatcher; listings have `None`. See `has_password`.
    pub password: Option<Secret>,
    pub has_password: bool,
    /// Who mail is from when a request does not say.
    pub from_address: Option<String>,
    pub use_tls: bool,
    pub tls: Tls,
    pub root_cert: Option<String>,
    pub allow_plaintext_auth: bool,
    pub limit_per_minute: Option<u64>,
    pub limit_per_hour: Option<u64>,
    pub limit_per_day: Option<u64>,
    pub limit_behavior: LimitBehavior,
    pub limit_unit: LimitUnit,
    pub priority0_share: u8,
    pub concurrency: u16,
    /// Nothing is sent before this.
    pub resume_at: Option<Instant>,
    /// Nothing but priority 0 is sent before this.
    pub resume_ordinary_at: Option<Instant>,
    /// Grows with every change: a pause decided by older limits is not noted.
    pub version: i64,
    pub created_at: Instant,
    pub updated_at: Instant,
}
