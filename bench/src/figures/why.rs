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
    (
        "growth.checks.sqlite.random",
        "a commit writes each key once, however often it was checked: with few keys many checks \
         share a row, with many each is a row and a page of its own. A single check (its p50) does \
         not wait for that unless the file is 100 ms behind",
    ),
];
