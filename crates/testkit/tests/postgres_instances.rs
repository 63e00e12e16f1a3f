//! Several instances on one PostgreSQL: as real processes, and two in this one.
//!
//! `cargo run --release -p testkit -- soak` does the first part at length.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "postgres_instances/processes.rs"]
mod processes;
#[path = "postgres_instances/two.rs"]
mod two;
