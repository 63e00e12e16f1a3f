//! What the dispatcher and the queue say to each other: claims, pauses, outcomes.

use std::time::Duration;

use tollgate::Instant;

use crate::model::AccountKey;

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

/// A claim as it stands in storage, be its instance well or dead. Never renewed: another claim of
/// the same message differs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OpenClaim {
    pub(crate) seq: i64,
    pub(crate) instance: String,
    pub(crate) claimed_at: Instant,
    pub(crate) until: Instant,
}

impl OpenClaim {
    /// For how long it was leased; nothing if its lease was ended by others.
    pub(crate) fn length(&self) -> Duration {
        let micros = self.until.micros_since(self.claimed_at);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
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
    /// Deferred until `at`, and the account stops.
    Throttled { pause: Pause, at: Instant, reason: String },
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
    pub(crate) messages: u64,
}

/// A key's quota to be given back, by its receipt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RefundDue {
    pub(crate) seq: i64,
    pub(crate) receipt: String,
}
