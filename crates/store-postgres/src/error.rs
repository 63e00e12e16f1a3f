//! What PostgreSQL's errors mean to a caller.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio_postgres::error::SqlState;
use tollgate_core::store::{StoreError, StoreErrorKind};

/// Says what failed, and keeps PostgreSQL's own words; they never hold a password.
pub(crate) fn failed(what: &str, error: tokio_postgres::Error) -> StoreError {
    let kind = kind(&error);
    let detail = match error.as_db_error() {
        Some(db) => db.message().to_owned(),
        None => std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), |source| format!("{error}: {source}")),
    };
    StoreError::new(kind, format!("{what}: {detail}")).with_source(error)
}

fn kind(error: &tokio_postgres::Error) -> StoreErrorKind {
    match error.code() {
        Some(
            &(SqlState::LOCK_NOT_AVAILABLE
            | SqlState::T_R_DEADLOCK_DETECTED
            | SqlState::T_R_SERIALIZATION_FAILURE),
        ) => StoreErrorKind::Contended,
        Some(&SqlState::QUERY_CANCELED) => StoreErrorKind::Timeout,
        Some(&(SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED)) => StoreErrorKind::Corrupt,
        _ => StoreErrorKind::Unavailable,
    }
}

pub(crate) fn timed_out() -> StoreError {
    StoreError::new(StoreErrorKind::Timeout, "PostgreSQL did not answer in time")
}

pub(crate) fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the store is closed")
}

pub(crate) fn corrupt(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, what)
}

/// What `work` answers. A panic in it, of a caller's own code or on a state that cannot be, is an
/// error to those it concerns, and to nobody else.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        let message = "deciding this panicked, and nothing was counted: see the log, and report it";
        StoreError::new(StoreErrorKind::Corrupt, message)
    })
}

pub(crate) fn contended() -> StoreError {
    StoreError::new(
        StoreErrorKind::Contended,
        "somebody else holds a lock on what this counts; see pg_locks for who",
    )
}
