//! What can go wrong in the relay. The server maps each to a status, once.

use std::fmt;

use tollgate::{Instant, StoreError, StoreErrorKind};

/// Why a call has no answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MailError {
    /// Something given is not valid; `field` names it.
    Invalid(Invalid),
    /// There is no such tenant, account, key or message.
    NotFound(String),
    /// It stands against what is already there, such as unsent mail of an account to be deleted.
    Conflict(String),
    /// The key that passwords are sealed with is missing, malformed or not the one in use.
    Key(String),
    /// The relay's storage, or the gate's store, could not answer.
    Store(StoreError),
}

/// One thing that is not valid, with the place it stands at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invalid {
    /// Such as `to[1]` or `limit_per_minute`.
    pub field: String,
    /// Continues a sentence that begins with the field.
    pub message: String,
}

impl Invalid {
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// Why a message given with an API key was not taken.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SendError {
    /// No such key.
    UnknownKey,
    /// The key was switched off.
    DisabledKey,
    /// The message is not valid. No quota was spent.
    Invalid(Invalid),
    /// The message is larger than the relay takes.
    TooLarge { bytes: usize, max_bytes: usize },
    /// More recipients than the daily limit: no day will do.
    NeverFits { requested: u64, limit: u64 },
    /// The day's quota does not hold so many recipients now.
    Refused(Refused),
    /// The idempotency key was used before, with another message.
    KeyReused,
    /// A store could not answer: nothing is sent (it fails closed).
    Store(StoreError),
}

/// A refusal by a key's daily limit, from one atomic reading.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    pub current: u64,
    pub requested: u64,
    pub limit: u64,
    /// Whole seconds, rounded up, at least one.
    pub retry_after_secs: u64,
    pub retry_at: Instant,
    /// How the day's limit stands and when to come again, as HTTP headers.
    pub headers: Vec<(String, String)>,
}

impl MailError {
    pub(crate) fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid(Invalid::new(field, message))
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::Store(StoreError::new(StoreErrorKind::Unavailable, message))
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.message)
    }
}

impl fmt::Display for MailError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(invalid) => invalid.fmt(f),
            Self::NotFound(message) | Self::Conflict(message) | Self::Key(message) => {
                f.write_str(message)
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKey => {
                f.write_str("this API key is not known; make one with `tollgate mail keys create`")
            }
            Self::DisabledKey => f.write_str("this API key is switched off"),
            Self::Invalid(invalid) => invalid.fmt(f),
            Self::TooLarge { bytes, max_bytes } => {
                write!(f, "the message is {bytes} bytes long; at most {max_bytes} are possible")
            }
            Self::NeverFits { requested, limit } => write!(
                f,
                "the message has {requested} recipients and the daily limit is {limit}: it can \
                 never be sent; split it, or raise the limit"
            ),
            Self::Refused(Refused { current, requested, limit, retry_after_secs, .. }) => write!(
                f,
                "Daily email limit exceeded. Current: {current}, requested: {requested}, limit: \
                 {limit}. Try again in {retry_after_secs} seconds."
            ),
            Self::KeyReused => {
                f.write_str("this idempotency key was used before with another message")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Invalid {}

impl std::error::Error for MailError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::Invalid(invalid) => Some(invalid),
            _ => None,
        }
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::Invalid(invalid) => Some(invalid),
            _ => None,
        }
    }
}

impl From<Invalid> for MailError {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

impl From<StoreError> for MailError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Invalid> for SendError {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

/// The gate's errors that a value policy of ours can meet are those of its store.
pub(crate) fn store_error(error: tollgate::Error) -> StoreError {
    match error {
        tollgate::Error::Store(error) => error,
        other => StoreError::new(StoreErrorKind::Unavailable, other.to_string()).with_source(other),
    }
}
