//! What SQLite reports, as a store error that says what to do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use rusqlite::ErrorCode;
use tollgate_core::store::{StoreError, StoreErrorKind};

pub(crate) fn unusable(path: &Path, error: rusqlite::Error) -> StoreError {
    let shown = path.display();
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (StoreErrorKind::Contended, format!("{shown} is in use by another process"))
        }
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => (
            StoreErrorKind::Corrupt,
            format!(
                "{shown} is not a sound tollgate database ({error}): restore it from a backup, \
                 or move it away to start empty"
            ),
        ),
        Some(ErrorCode::DiskFull) => (
            StoreErrorKind::Unavailable,
            format!("the disk of {shown} is full: free some space, writing goes on by itself"),
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => (
            StoreErrorKind::Unavailable,
            format!(
                "{shown} cannot be opened for writing ({error}): check that its folder exists \
                 and is writable, or choose another file with --store sqlite:PATH"
            ),
        ),
        _ => (
            StoreErrorKind::Unavailable,
            format!(
                "{shown} cannot be used ({error}): check its disk; once that works again, so \
                 does writing, by itself"
            ),
        ),
    };
    StoreError::new(kind, message).with_source(error)
}

pub(crate) fn foreign(path: &Path) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!(
            "{} is a SQLite database of another program: choose another file with \
             --store sqlite:PATH",
            path.display()
        ),
    )
}

pub(crate) fn damaged(path: &Path, what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!(
            "{} holds {what} that cannot be read: it was damaged or written by a newer tollgate; \
             restore it from a backup, or move it away to start empty",
            path.display()
        ),
    )
}

pub(crate) fn stopped_early(path: &Path) -> StoreError {
    let message = format!("{} ended a transaction early: check its disk", path.display());
    StoreError::new(StoreErrorKind::Unavailable, message)
}

/// What a caller's own code answers. A panic in it is an error to that caller, and to nobody else.
pub(crate) fn caught<T>(callers_code: impl FnOnce() -> T) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(callers_code)).map_err(|_| {
        let message = "the caller's code panicked while it made the answer to be recorded, and \
                       nothing was counted: see the log for where";
        StoreError::new(StoreErrorKind::Corrupt, message)
    })
}

pub(crate) fn job_panicked() -> StoreError {
    let message = "the store panicked at this request: see the log, and report it";
    StoreError::new(StoreErrorKind::Corrupt, message)
}

pub(crate) fn stopped() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the store is closed")
}
