//! The PostgreSQL store through PgBouncer in transaction mode, proved.
//!
//! Fewer sessions than lanes: no two batches of a lane are sure to meet the same one.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::OnceLock;

use testkit::servers::{PgBouncer, Postgres, Settings};
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

/// A session behind a pooler may know nothing of what was prepared, or another statement by its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_are_prepared_only_where_nobody_stands_in_between() {
    let plain = Postgres::start();
    let encrypted = Postgres::start_with(Settings { tls: true, ..Settings::default() });
    let pooled = PgBouncer::start_with(&plain, &[]);
    for postgres in [&plain, &encrypted] {
        postgres.psql("alter system set log_statement = 'all'");
        postgres.psql("select pg_reload_conf()");
    }
    for (postgres, server, options, is_prepared) in [
        (&plain, plain.url(), "sslmode=disable", true),
        (&encrypted, encrypted.url(), "sslmode=require", true),
        (&plain, plain.url(), "prepare=off", false),
        (&plain, pooled.url(), "sslmode=disable", false),
    ] {
        let logged = postgres.log().len();
        let schema = random::name("s").replace('-', "_");
        let gate = Tollgate::open(&format!("{server}?schema={schema}&{options}")).await.unwrap();
        let limit = |name: &str| format!(r#"{{ name = "{name}", max = 1000, per = "1h" }}"#);
        let (one, two) = (limit("one"), format!("{}, {}", limit("one"), limit("two")));
        for (name, limits) in [("one", one), ("two", two)] {
            let policy = format!("limits = [{limits}]");
            let policy = tollgate::Policy::from_toml(name, &policy).unwrap();
            gate.apply(&policy, "test").await.unwrap();
            for _ in 0..3 {
                assert!(gate.check(name, &[], 1).await.unwrap().allowed());
            }
        }
        let log = postgres.log();
        let calls: Vec<&str> =
            log[logged..].lines().filter(|line| line.contains(" execute ")).collect();
        let of_one_key = calls.iter().any(|line| line.contains("What write_known does"));
        assert_eq!(of_one_key, is_prepared, "{options}");
        for what in ["Locks and reads everything", "Writes what was decided on remembered"] {
            let mut calls = calls.iter().filter(|line| line.contains(what)).peekable();
            assert!(calls.peek().is_some(), "{options}: {what:?} was not said");
            assert!(calls.all(|line| line.contains("<unnamed>") != is_prepared), "{options}");
        }
    }
}
