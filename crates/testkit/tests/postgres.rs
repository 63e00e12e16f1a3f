//! The PostgreSQL store, proved.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use testkit::servers::Postgres;
use testkit::{ManualClock, random};
use tollgate::Tollgate;

async fn postgres() -> (Tollgate, ManualClock) {
    let clock = ManualClock::start();
    let schema = random::name("s").replace('-', "_");
    let url = format!("{}?schema={schema}&deadline=10s&lanes=2", Postgres::shared().url());
    (Tollgate::open_with_clock(&url, clock.shared()).await.unwrap(), clock)
}

testkit::conformance!(postgres);
testkit::model!(postgres, scripts = 30);
testkit::concurrency!(postgres);
