//! Why a target is missed, as far as it is known: shown only beside those that are.

/// By the beginning of the targets' ids.
pub(super) const MISSED: &[(&str, &str)] = &[
    (
        "inprocess.bucket",
        "governor decides with one atomic and keeps nothing else; we take a lock, keep what refunds \
         need, and report every limit",
    ),
    ("http.sqlite", "the file's writer shares the two cores with the server and the load"),
    (
        "postgres.refusals.http",
        "it is all that HTTP gives on these cores: the database is not asked",
    ),
    ("slots.last.sqlite", "index pages outgrow SQLite's cache"),
];
