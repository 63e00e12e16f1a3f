//! Why a target is missed, as far as it is known: shown only beside those that are.

/// By the beginning of the targets' ids.
pub(super) const MISSED: &[(&str, &str)] = &[
    (
        "inprocess.bucket",
        "both wait for memory; governor decides with one atomic and keeps nothing else, we take a \
         lock, keep what refunds need, and report every limit",
    ),
    (
        "inprocess.three.",
        "all or nothing: keys that both threads use are decided by one at a time, so two are as \
         fast as one, while limitador gains from the second",
    ),
    ("http.memory", "both are at what the transport gives, and change places from run to run"),
    ("edge.gate", "the answer has eight headers more to write and to send"),
    ("http.sqlite", "the file's writer shares the two cores with the server and the load"),
    (
        "postgres.refusals.http",
        "it is all that HTTP gives on these cores: the database is not asked",
    ),
    (
        "growth.checks",
        "not the number of keys but the memory they lie in, once they no longer fit the caches of \
         the processor and of the database",
    ),
    (
        "slots.callers",
        "about what is promised: on one side of it on one host, on the other on another",
    ),
    (
        "slots.lone.postgres",
        "about what is promised, as above: a slot writes its schedule and its window besides \
         itself, where the insert writes one row",
    ),
    ("slots.last.sqlite", "index pages outgrow SQLite's cache"),
    (
        "postgres.lone",
        "two threads more to wake than pgbench has: the database takes nearly as long for both",
    ),
    (
        "postgres.steady.refusals",
        "they never leave the process: more callers only take turns on the cores",
    ),
];
