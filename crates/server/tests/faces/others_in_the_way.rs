//! Callers are served while others are in the way: clients that do nothing or are slow, strangers who take every
//! connection of the database. `cargo run --release -p testkit -- faults` has all faults, and at length.

use std::path::PathBuf;
use std::time::Duration;

use testkit::faults::{self, Plan};

/// Fewer of everything than in the published table, and patience for whatever else this machine does.
fn keeps_its_promises(name: &str) {
    let plan = Plan {
        callers: 8,
        rest: Duration::from_millis(20),
        idle: 1_000,
        slow: 40,
        slack: Duration::from_secs(10),
        ..Plan::of(PathBuf::from(env!("CARGO_BIN_EXE_tollgate")))
    };
    let outcomes = faults::run(&plan, &[name]).unwrap();
    assert!(outcomes.iter().all(faults::is_well), "{}", faults::table(&outcomes));
}

#[test]
fn a_thousand_idle_connections_keep_nobody_waiting() {
    keeps_its_promises("idle-connections");
}

#[test]
fn slow_clients_are_sent_away_and_keep_nobody_waiting() {
    keeps_its_promises("slow-clients");
}

#[test]
fn a_database_without_a_free_connection_is_answered_for_and_used_again() {
    keeps_its_promises("connections-taken");
}
