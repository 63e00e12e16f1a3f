//! What can go wrong. A refusal is not among it.

use std::fmt;

use tollgate_core::store::StoreError;

use crate::policy::InvalidPolicy;

/// Why a call has no answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    NoSuchPolicy(String),
    NoSuchLimit {
        policy: String,
        limit: String,
    },
    BadSubject(BadSubject),
    /// The cost is zero: asking without spending is a peek.
    ZeroCost,
    /// Not a receipt of this store, or altered.
    BadReceipt,
    /// The idempotency key was used before, with another request.
    KeyReused,
    BadPolicy(InvalidPolicy),
    BadOverride(BadSubject),
    /// An event that cannot have a slot.
    BadEvent(BadSubject),
    /// The policy is not one that events can be scheduled by.
    NotASchedule {
        policy: String,
        why: String,
    },
    /// A store URL that cannot be understood.
    BadStoreUrl(String),
    /// The store could not answer, and the policy says to refuse then.
    Store(StoreError),
}

/// A part of a request that is missing or out of bounds: an attribute, `max`, `limit` or `eventId`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadSubject {
    /// Such as `subject.user`.
    pub field: String,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchPolicy(name) => write!(f, "there is no policy {name:?}"),
            Self::NoSuchLimit { policy, limit } => {
                write!(f, "policy {policy:?} has no limit {limit:?}")
            }
            Self::BadSubject(bad) | Self::BadOverride(bad) | Self::BadEvent(bad) => {
                write!(f, "{} {}", bad.field, bad.message)
            }
            Self::NotASchedule { policy, why } => {
                write!(f, "policy {policy:?} cannot schedule events: a schedule {why}")
            }
            Self::ZeroCost => f.write_str("cost must be at least 1 (a peek of any cost spends nothing)"),
            Self::BadReceipt => f.write_str(
                "this is not a receipt that this store gave; send the `receipt` of an allowed check, whole",
            ),
            Self::KeyReused => {
                f.write_str(
                    "this idempotency key was used before with another request; use a new key for \
                     this one",
                )
            }
            Self::BadPolicy(invalid) => invalid.fmt(f),
            Self::BadStoreUrl(message) => f.write_str(message),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::BadPolicy(invalid) => Some(invalid),
            _ => None,
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<InvalidPolicy> for Error {
    fn from(invalid: InvalidPolicy) -> Self {
        Self::BadPolicy(invalid)
    }
}

impl From<BadSubject> for Error {
    fn from(bad: BadSubject) -> Self {
        Self::BadSubject(bad)
    }
}
