//! What every figure is held against: the list, one row for each speed that is promised.
//!
//! Data only: verdicts are given in `targets.rs`. An id begins with the name of the bench that
//! measures it. `must` is the promise, `aim` what we would like.

use super::{Bound, Target};

/// Issues in the order of the roadmap, with what they ask for.
pub(super) const ALL: &[(u8, &[Target])] =
    &[(1, CHECKS), (2, ON_POSTGRES), (3, SCHEDULES), (4, RELAY), (5, AT_THE_EDGE), (6, BY_SIZE)];

const IN_PROCESS: &str = "medians of the rounds' ratios, contenders in turn, in one process";
const HTTP: &str = "requests/s of `wrk -t2 -c64`, medians of the rounds' ratios";
const MEMORY: &str = "resident memory of a process, full less empty";
const START: &str = "median from spawn to the first answer of /healthz";
const POSTGRES: &str = "durable, `pgbench -M prepared` for SQL, medians of the rounds' ratios";
const SLOTS: &str = "durable, all events ask for one instant, at most 100 per PT4S; medians";
const MAIL: &str = "one server on a file, a local SMTP sink, 8 connections";
const EDGE: &str = "medians of the rounds, interleaved";
const OFFENDERS: &str =
    "requests/s of `wrk -t2 -c64` on two servers, medians of the rounds' ratios";
const PACKAGE: &str = "esbuild, then gzip -9";
const GROWTH: &str = "the worst step's cost over that of log n (random keys in process: of a bare hash table, where \
     that is more), which has room for caches up to 2";

// A row to a line, so that it can be read as the table it is.
#[rustfmt::skip]
const CHECKS: &[Target] = &[
    at_most("inprocess.bucket.hot.1", "one bucket limit to governor keyed, hot key, 1 thread", " ×", Some(1.5), Some(1.0), IN_PROCESS),
    at_most("inprocess.bucket.hot.2", "one bucket limit to governor keyed, hot key, 2 threads", " ×", Some(1.5), Some(1.0), IN_PROCESS),
    at_most("inprocess.bucket.100k.1", "one bucket limit to governor keyed, 100,000 keys, 1 thread", " ×", Some(1.0), None, IN_PROCESS),
    at_most("inprocess.bucket.100k.2", "one bucket limit to governor keyed, 100,000 keys, 2 threads", " ×", Some(1.0), None, IN_PROCESS),
    at_least("inprocess.three.hot.1", "3 limits, times as fast as limitador, hot key, 1 thread", " ×", Some(10.0), None, IN_PROCESS),
    at_most("inprocess.three_ns.hot.1", "3 limits, hot key, 1 thread", " ns", None, Some(250.0), IN_PROCESS),
    at_least("inprocess.three.hot.2", "3 limits, times as fast as limitador, hot key, 2 threads", " ×", Some(10.0), None, IN_PROCESS),
    at_most("inprocess.three_ns.hot.2", "3 limits, hot key, 2 threads", " ns", None, Some(250.0), IN_PROCESS),
    at_least("inprocess.three.100k.1", "3 limits, times as fast as limitador, 100,000 keys, 1 thread", " ×", Some(10.0), None, IN_PROCESS),
    at_most("inprocess.three_ns.100k.1", "3 limits, 100,000 keys, 1 thread", " ns", None, Some(250.0), IN_PROCESS),
    at_least("inprocess.three.100k.2", "3 limits, times as fast as limitador, 100,000 keys, 2 threads", " ×", Some(10.0), None, IN_PROCESS),
    at_most("inprocess.three_ns.100k.2", "3 limits, 100,000 keys, 2 threads", " ns", None, Some(250.0), IN_PROCESS),
    at_least("http.memory.1.hot.echo", "HTTP, `memory:`, 1 limit, hot key, to the bare echo", " ×", Some(0.8), Some(0.95), HTTP),
    at_least("http.memory.1.hot.throttlecrab", "HTTP, `memory:`, 1 limit, hot key, to throttlecrab-server", " ×", Some(1.0), None, HTTP),
    at_least("http.memory.1.hot.limitador", "HTTP, `memory:`, 1 limit, hot key, to limitador behind axum", " ×", Some(1.0), None, HTTP),
    at_least("http.memory.1.many.echo", "HTTP, `memory:`, 1 limit, 10,000 keys, to the bare echo", " ×", Some(0.8), Some(0.95), HTTP),
    at_least("http.memory.1.many.throttlecrab", "HTTP, `memory:`, 1 limit, 10,000 keys, to throttlecrab-server", " ×", Some(1.0), None, HTTP),
    at_least("http.memory.1.many.limitador", "HTTP, `memory:`, 1 limit, 10,000 keys, to limitador behind axum", " ×", Some(1.0), None, HTTP),
    at_least("http.memory.3.hot.echo", "HTTP, `memory:`, 3 limits, hot key, to the bare echo", " ×", Some(0.75), None, HTTP),
    at_least("http.memory.3.hot.limitador", "HTTP, `memory:`, 3 limits, hot key, to limitador behind axum", " ×", Some(1.0), None, HTTP),
    at_least("http.memory.3.many.echo", "HTTP, `memory:`, 3 limits, 10,000 keys, to the bare echo", " ×", Some(0.75), None, HTTP),
    at_least("http.memory.3.many.limitador", "HTTP, `memory:`, 3 limits, 10,000 keys, to limitador behind axum", " ×", Some(1.0), None, HTTP),
    at_least("http.sqlite.1.hot.echo", "HTTP, `sqlite:`, 1 limit, hot key, to the bare echo", " ×", Some(0.8), Some(0.95), HTTP),
    at_least("http.sqlite.1.hot.throttlecrab", "HTTP, `sqlite:`, 1 limit, hot key, to throttlecrab-server", " ×", Some(1.0), None, HTTP),
    at_least("http.sqlite.1.hot.limitador", "HTTP, `sqlite:`, 1 limit, hot key, to limitador behind axum", " ×", Some(1.0), None, HTTP),
    at_least("http.sqlite.1.many.echo", "HTTP, `sqlite:`, 1 limit, 10,000 keys, to the bare echo", " ×", Some(0.8), Some(0.95), HTTP),
    at_least("http.sqlite.1.many.throttlecrab", "HTTP, `sqlite:`, 1 limit, 10,000 keys, to throttlecrab-server", " ×", Some(1.0), None, HTTP),
    at_least("http.sqlite.1.many.limitador", "HTTP, `sqlite:`, 1 limit, 10,000 keys, to limitador behind axum", " ×", Some(1.0), None, HTTP),
    at_least("http.sqlite.3.hot.echo", "HTTP, `sqlite:`, 3 limits, hot key, to the bare echo", " ×", Some(0.75), None, HTTP),
    at_least("http.sqlite.3.hot.limitador", "HTTP, `sqlite:`, 3 limits, hot key, to limitador behind axum", " ×", Some(1.0), None, HTTP),
    at_least("http.sqlite.3.many.echo", "HTTP, `sqlite:`, 3 limits, 10,000 keys, to the bare echo", " ×", Some(0.75), None, HTTP),
    at_least("http.sqlite.3.many.limitador", "HTTP, `sqlite:`, 3 limits, 10,000 keys, to limitador behind axum", " ×", Some(1.0), None, HTTP),
    at_most("memory.bytes_per_key", "memory for each of 1,000,000 keys, one bucket limit", " bytes", Some(150.0), None, MEMORY),
    at_most("start.empty", "`serve` ready, empty", " ms", Some(100.0), None, START),
    at_most("start.full", "`serve` ready, 1,000,000 keys on disk", " ms", Some(1500.0), None, START),
];

#[rustfmt::skip]
const ON_POSTGRES: &[Target] = &[
    at_least("postgres.hot.inprocess", "PostgreSQL, one hot key, 64 callers, to the usual upsert, in process", " ×", Some(20.0), Some(50.0), POSTGRES),
    at_least("postgres.hot.http", "PostgreSQL, one hot key, 64 callers, to the usual upsert, over HTTP", " ×", Some(20.0), Some(50.0), POSTGRES),
    at_least("postgres.tiers.inprocess", "PostgreSQL, three tiers, 64 callers, to three calls of the usual function, in process", " ×", Some(15.0), Some(40.0), POSTGRES),
    at_least("postgres.tiers.http", "PostgreSQL, three tiers, 64 callers, to three calls of the usual function, over HTTP", " ×", Some(15.0), Some(40.0), POSTGRES),
    at_least("postgres.many.inprocess", "PostgreSQL, 10,000 random keys, 64 callers, to the usual upsert, in process", " ×", Some(2.0), Some(4.0), POSTGRES),
    at_least("postgres.many.http", "PostgreSQL, 10,000 random keys, 64 callers, to the usual upsert, over HTTP", " ×", Some(2.0), Some(4.0), POSTGRES),
    at_least("postgres.refusals.inprocess", "PostgreSQL, refusals on a hot key, 64 callers, to the usual upsert, in process", " ×", Some(100.0), None, POSTGRES),
    at_least("postgres.refusals.http", "PostgreSQL, refusals on a hot key, 64 callers, to the usual upsert, over HTTP", " ×", Some(100.0), None, POSTGRES),
    at_most("postgres.p99.inprocess", "PostgreSQL, one hot key, 64 callers, our p99 to the upsert's p50, in process", " ×", Some(1.0), None, POSTGRES),
    at_most("postgres.p99.http", "PostgreSQL, one hot key, 64 callers, our p99 to the upsert's p50, over HTTP", " ×", Some(1.0), None, POSTGRES),
    at_most("postgres.lone.inprocess", "PostgreSQL, a lone caller, our p50 to the upsert's, in process", " ×", Some(1.5), None, POSTGRES),
    at_most("postgres.lone.http", "PostgreSQL, a lone caller, our p50 to the upsert's, over HTTP", " ×", Some(1.5), None, POSTGRES),
    at_least("postgres.steady.hot.inprocess", "PostgreSQL, one hot key, in process: 8 to 64 to 512 callers, the smaller step", " ×", Some(1.0), None, POSTGRES),
    at_least("postgres.steady.hot.http", "PostgreSQL, one hot key, over HTTP: 8 to 64 to 512 callers, the smaller step", " ×", Some(1.0), None, POSTGRES),
    at_least("postgres.steady.tiers.inprocess", "PostgreSQL, three tiers, in process: 8 to 64 to 512 callers, the smaller step", " ×", Some(1.0), None, POSTGRES),
    at_least("postgres.steady.tiers.http", "PostgreSQL, three tiers, over HTTP: 8 to 64 to 512 callers, the smaller step", " ×", Some(1.0), None, POSTGRES),
    at_least("postgres.steady.many.inprocess", "PostgreSQL, 10,000 random keys, in process: 8 to 64 to 512 callers, the smaller step", " ×", Some(1.0), None, POSTGRES),
    at_least("postgres.steady.many.http", "PostgreSQL, 10,000 random keys, over HTTP: 8 to 64 to 512 callers, the smaller step", " ×", Some(1.0), None, POSTGRES),
    at_least("postgres.steady.refusals.inprocess", "PostgreSQL, refusals, in process: 8 to 64 to 512 callers, the smaller step", " ×", Some(1.0), None, POSTGRES),
    at_least("postgres.steady.refusals.http", "PostgreSQL, refusals, over HTTP: 8 to 64 to 512 callers, the smaller step", " ×", Some(1.0), None, POSTGRES),
];

#[rustfmt::skip]
const SCHEDULES: &[Target] = &[
    at_least("slots.callers", "slots, PostgreSQL, 32 callers, one burst, to the usual windows in plpgsql", " ×", Some(10.0), Some(20.0), SLOTS),
    at_least("slots.batches.postgres", "slots, PostgreSQL, batches of 1,000, durable", " slots/s", Some(20000.0), None, SLOTS),
    at_least("slots.batches.sqlite", "slots, SQLite, batches of 1,000, durable", " slots/s", Some(50000.0), None, SLOTS),
    at_least("slots.last.postgres", "slots, PostgreSQL, the last 10,000 of 500,000 to the first, by speed", " ×", Some(0.9), None, SLOTS),
    at_least("slots.earlier.postgres", "slots, PostgreSQL, an earlier time after that to a time of its own, by speed", " ×", Some(0.9), None, SLOTS),
    at_most("slots.lone.postgres", "slots, PostgreSQL, a lone call to a bare durable insert", " ×", Some(2.0), None, SLOTS),
    at_least("slots.last.sqlite", "slots, SQLite, the last 10,000 of 500,000 to the first, by speed", " ×", Some(0.9), None, SLOTS),
    at_least("slots.earlier.sqlite", "slots, SQLite, an earlier time after that to a time of its own, by speed", " ×", Some(0.9), None, SLOTS),
    at_most("slots.lone.sqlite", "slots, SQLite, a lone call to a bare durable insert", " ×", Some(2.0), None, SLOTS),
];

#[rustfmt::skip]
const RELAY: &[Target] = &[
    at_least("mail.accepted", "mail accepted over HTTP, batches of 100, durable, on a file", " /s", Some(1500.0), None, MAIL),
    at_least("mail.delivered", "mail delivered to a local sink", " /s", Some(300.0), None, MAIL),
    at_most("mail.waiting", "1,000,000 messages waiting: the whole server", " % of a core", Some(5.0), None, MAIL),
    at_most("mail.memory", "1,000,000 messages waiting: memory for each", " bytes", Some(100.0), None, MAIL),
];

#[rustfmt::skip]
const AT_THE_EDGE: &[Target] = &[
    at_most("edge.tower", "the tower layer adds, p50", " µs", Some(3.0), None, EDGE),
    at_least("edge.gate", "`/gate` to a bare, empty answer, 10,000 keys", " ×", Some(0.8), None, EDGE),
    at_least("offenders.allowed", "recording offenders to not recording, allowed, 10,000 keys", " ×", Some(0.95), None, OFFENDERS),
    at_least("offenders.refused.hot", "recording offenders to not recording, refused, hot key", " ×", Some(0.95), None, OFFENDERS),
    at_least("offenders.refused.many", "recording offenders to not recording, refused, 10,000 keys", " ×", Some(0.95), None, OFFENDERS),
    at_most("package.bytes", "npm package without its React parts, minified and gzipped", " bytes", Some(5000.0), None, PACKAGE),
];

#[rustfmt::skip]
const BY_SIZE: &[Target] = &[
    at_most("growth.checks.memory.hot", "growth of checks, `memory:`, one hot key, 1,000 to 10,000,000", " × log n", Some(2.0), None, GROWTH),
    at_most("growth.checks.memory.random", "growth of checks, `memory:`, random keys, 1,000 to 10,000,000", " × log n", Some(2.0), None, GROWTH),
    at_most("growth.checks.sqlite.hot", "growth of checks, `sqlite:`, one hot key, 1,000 to 10,000,000", " × log n", Some(2.0), None, GROWTH),
    at_most("growth.checks.sqlite.random", "growth of checks, `sqlite:`, random keys, 1,000 to 10,000,000", " × log n", Some(2.0), None, GROWTH),
    at_most("growth.checks.postgres.hot", "growth of checks, PostgreSQL, one hot key, 1,000 to 10,000,000", " × log n", Some(2.0), None, GROWTH),
    at_most("growth.checks.postgres.random", "growth of checks, PostgreSQL, random keys, 1,000 to 10,000,000", " × log n", Some(2.0), None, GROWTH),
    at_most("growth.slots.postgres", "growth of slots in one burst, PostgreSQL, 1,000 to 5,000,000", " × log n", Some(2.0), None, GROWTH),
    at_most("growth.slots.sqlite", "growth of slots in one burst, SQLite, 1,000 to 5,000,000", " × log n", Some(2.0), None, GROWTH),
    at_most("growth.mail.sqlite.accept", "growth of a mail backlog, SQLite, accepting, 1,000 to 1,000,000", " × log n", Some(2.0), None, GROWTH),
    at_most("growth.mail.sqlite.claim", "growth of a mail backlog, SQLite, claiming and delivering, 1,000 to 1,000,000", " × log n", Some(2.0), None, GROWTH),
    at_most("growth.mail.postgres.accept", "growth of a mail backlog, PostgreSQL, accepting, 1,000 to 1,000,000", " × log n", Some(2.0), None, GROWTH),
    at_most("growth.mail.postgres.claim", "growth of a mail backlog, PostgreSQL, claiming and delivering, 1,000 to 1,000,000", " × log n", Some(2.0), None, GROWTH),
];

type Limit = Option<f64>;
type Text = &'static str;

const fn at_least(id: Text, what: Text, unit: Text, must: Limit, aim: Limit, how: Text) -> Target {
    Target { id, what, unit, bound: Bound::AtLeast, must, aim, how }
}

const fn at_most(id: Text, what: Text, unit: Text, must: Limit, aim: Limit, how: Text) -> Target {
    Target { id, what, unit, bound: Bound::AtMost, must, aim, how }
}
