//! The library people add: policies, checks, receipts and failure modes over any store.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tollgate::Error> {
//! use tollgate::{Policy, Tollgate};
//! let gate = Tollgate::open("memory:").await?;
//! let policy = r#"limits = [{ name = "user", max = 2, per = "60s", by = ["user"] }]"#;
//! gate.apply(&Policy::from_toml("api", policy)?, "me").await?;
//! let answer = gate.check("api", &[("user", "ada")], 1).await?;
//! assert!(answer.allowed());
//! # Ok(()) }
//! ```
//!
//! A policy can also be a value that is stored nowhere ([`Tollgate::limiter`]). On the stores of one
//! process its [`Limiter::check_blocking`] needs no runtime and, on a known key and up to four
//! limits, no allocation; [`Limiter::check_into`] does the same for a decision that is used again.

mod answer;
mod catalogue;
mod compiled;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod idempotency;
mod limiter;
mod local;
mod offenders;
mod overrides;
mod policy;
mod proxies;
mod receipt;
mod refresh;
mod routes;
mod secret;
mod seldom;
mod slots;
mod store;
mod subject;
mod token;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "http")]
pub mod wire;

pub use answer::{Answer, Degraded};
pub use catalogue::{Applied, FilePolicy};
pub use compiled::Compiled;
pub use error::{BadSubject, Error};
pub use gate::Tollgate;
pub use idempotency::{IdempotencyKey, OnceAnswer};
pub use limiter::Limiter;
pub use offenders::{Alert, AlertRule, AlertScope, OFFENDERS_KEPT, Offender, OffenderList};
pub use policy::duration::parse_duration;
pub use policy::fields::Fault;
pub use policy::schedule::parse_zone;
pub use policy::{InvalidPolicy, MAX_LIMITS, OnStoreError, Policy, policies_from_toml};
pub use proxies::TrustedProxies;
pub use routes::Matched;
#[doc(hidden)]
pub use seldom::Seldom;
pub use slots::SlotWindow;
pub use store::{shown_url, sqlite_path};
pub use subject::{
    Attributes, MAX_ATTRIBUTE_NAME_BYTES, MAX_ATTRIBUTE_VALUE_BYTES, MAX_ATTRIBUTES,
    PARAMETER_PREFIX, Subject,
};
pub use token::{Bearer, NewToken, Revoked, Scope, TokenInForce};
pub use tollgate_core as core;
pub use tollgate_core::store::{
    BATCH_SIZE_BOUNDS, Clock, Drift, Durability, Override, PolicyVersion, Recount, Refunded, Slot,
    SlotAnswer, SlotAsk, SlotQuery, StatsReading, StoreError, StoreErrorKind,
};
pub use tollgate_core::{Decision, Instant, LimitReport, Outcome, Span, Standing, Verdict};
pub use tollgate_store_embedded::SystemClock;
pub use tollgate_store_postgres::{
    Migration as PostgresMigration, Migrations as PostgresMigrations,
    Neighbour as PostgresNeighbour, doors as sql_doors,
};
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub use tollgate_store_postgres::{Stream as SimulatedStream, World as SimulatedWorld};

/// The page about the tower layer, whose code is run with the others.
#[cfg(all(doctest, feature = "tower"))]
#[doc = include_str!("../../../docs/axum.md")]
struct AxumPage;
