//! Why a target is missed, as far as it is known: shown only beside those that are.

/// By the beginning of the targets' ids.
pub(super) const MISSED: &[(&str, &str)] = &[
    (
        "inprocess.bucket",
        "both wait for memory; governor decides with one atomic and keeps nothing else, we take a \
         lock, keep what refunds need, and report every limit",
    ),
    ("http.sqlite", "the file's writer shares the two cores with the server and the load"),
    (
        "postgres.refusals.http",
        "it is all that HTTP gives on these cores: the database is not asked",
    ),
    ("slots.last.sqlite", "index pages outgrow SQLite's cache"),
    ("postgres.lone", "two threads more to wake, and a function of several statements"),
    (
        "postgres.steady.refusals",
        "they never leave the process: more callers only take turns on the cores",
    ),
];
