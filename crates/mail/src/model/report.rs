//! Delivery reports on their way to a tenant.

use tollgate::Instant;

use crate::settings::Secret;

/// The final outcome of one message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Report {
    /// Names it for `reports_done`.
    pub(crate) seq: i64,
    pub(crate) message_id: String,
    pub(crate) account_id: String,
    pub(crate) batch_code: Option<String>,
    /// `sent` or `error`.
    pub(crate) status: String,
    /// When that was.
    pub(crate) at: Instant,
    pub(crate) attempts: u32,
    pub(crate) smtp_code: Option<u16>,
    pub(crate) error: Option<String>,
}

/// Reports of one tenant, leased to this instance.
#[derive(Clone, Debug)]
pub(crate) struct ReportBatch {
    pub(crate) tenant_id: String,
    pub(crate) url: String,
    pub(crate) secret: Secret,
    /// POSTs that failed since the last that did not.
    pub(crate) failures: u32,
    /// Oldest first.
    pub(crate) reports: Vec<Report>,
}
