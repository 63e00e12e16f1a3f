//! Readers of single values, for the fuzz targets.

use tollgate::{Instant, Span};

use super::{offenders, query, slot_audit};

/// A time in a request.
pub fn instant(text: &str) -> Option<Instant> {
    query::instant("time", text).ok()
}

/// How far back a list of offenders goes.
pub fn since(text: &str) -> Option<Span> {
    offenders::read_since(text).ok()
}

/// Where a page of slots begins.
pub fn slot_cursor(text: &str) -> Option<(Instant, String)> {
    slot_audit::read_cursor(text).ok()
}
