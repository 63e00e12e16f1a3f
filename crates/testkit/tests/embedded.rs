//! The embedded store on its file, proved.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use tempfile::TempDir;
use testkit::ManualClock;
use tollgate::Tollgate;

async fn sqlite() -> (Tollgate, ManualClock, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::start();
    let url = format!("sqlite:{}", folder.path().join("tollgate.db").display());
    (Tollgate::open_with_clock(&url, clock.shared()).await.unwrap(), clock, folder)
}

testkit::conformance!(sqlite);
testkit::model!(sqlite, scripts = 150);
testkit::concurrency!(sqlite);
