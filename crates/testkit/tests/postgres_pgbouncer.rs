//! The PostgreSQL store through PgBouncer in transaction mode, proved.
//!
//! Fewer sessions than lanes: no two batches of a lane are sure to meet the same one.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::OnceLock;

use testkit::servers::{PgBouncer, Postgres};
use testkit::{ManualClock, random};
use tollgate::Tollgate;

fn bouncer() -> &'static PgBouncer {
    static BOUNCER: OnceLock<PgBouncer> = OnceLock::new();
    BOUNCER.get_or_init(|| {
        let lines = ["default_pool_size = 6", "server_idle_timeout = 1", "max_client_conn = 1000"];
        PgBouncer::start_with(Postgres::shared(), &lines)
    })
}

async fn pgbouncer() -> (Tollgate, ManualClock) {
    let clock = ManualClock::start();
    let schema = random::name("s").replace('-', "_");
    let url = format!("{}?schema={schema}&deadline=10s&lanes=3", bouncer().url());
    (Tollgate::open_with_clock(&url, clock.shared()).await.unwrap(), clock)
}

testkit::conformance!(pgbouncer);
testkit::model!(pgbouncer, scripts = 150);
testkit::concurrency!(pgbouncer);
