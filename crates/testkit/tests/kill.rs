//! Kill -9 in small; `cargo run --release -p testkit -- kill` does it at length.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::path::PathBuf;
use std::time::Duration;

use testkit::kill::{Plan, Summary, run};
use tollgate::Durability;

fn kill(durability: Durability) -> Summary {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan {
        kills: 10,
        durability,
        program: PathBuf::from(env!("CARGO_BIN_EXE_testkit")),
        folder: folder.path().to_owned(),
        // Other tests run beside it.
        room: Duration::from_millis(100),
    };
    let summary = run(&plan, |_| {}).unwrap();
    println!("{durability:?}: {summary}");
    assert!(summary.decisions > 0, "the child answered something before it died");
    summary
}

#[test]
fn a_kill_forgets_nothing_that_was_answered_with_sync() {
    assert_eq!(kill(Durability::Sync).forgotten, 0);
}

#[test]
fn a_kill_forgets_at_most_the_last_moments_with_interval() {
    kill(Durability::Interval);
}
