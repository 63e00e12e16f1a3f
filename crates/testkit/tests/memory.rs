//! The embedded store without its file, proved.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use testkit::ManualClock;
use tollgate::Tollgate;

async fn memory() -> (Tollgate, ManualClock) {
    let clock = ManualClock::start();
    (Tollgate::open_with_clock("memory:", clock.shared()).await.unwrap(), clock)
}

testkit::conformance!(memory);
testkit::model!(memory, scripts = 1500);
testkit::concurrency!(memory);
