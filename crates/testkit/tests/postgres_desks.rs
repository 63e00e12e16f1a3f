//! Work besides checks: whoever waits for a lock holds up no other, and whoever stops waiting leaves
//! nothing half done.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[allow(dead_code, reason = "shared with the tests of faults")]
#[path = "postgres_faults/session.rs"]
mod session;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant as Stopwatch};

use session::Session;
use testkit::random;
use testkit::servers::Postgres;
use tollgate::{AlertRule, AlertScope, Policy, SlotAsk, Span, Tollgate};

/// Longer than anything takes that waits for nobody.
const SOON: Duration = Duration::from_secs(2);

async fn open() -> (String, Tollgate) {
    let schema = random::name("s").replace('-', "_");
    let url = format!("{}?schema={schema}&deadline=10s", Postgres::shared().url());
    (schema, Tollgate::open(&url).await.unwrap())
}

async fn apply(gate: &Tollgate, name: &str, limits: &str) {
    gate.apply(&Policy::from_toml(name, limits).unwrap(), "test").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_that_somebody_holds_holds_up_no_look_up_of_others() {
    let (schema, gate) = open().await;
    for name in ["held", "free"] {
        apply(&gate, name, r#"limits = [{ name = "window", max = 10, per = "4s" }]"#).await;
        let event = |number| SlotAsk { event_id: format!("{name}-{number}"), requested_at: None };
        gate.assign_slots(name, (0..3).map(event).collect()).await.unwrap();
    }
    let holder = Session::open(&Postgres::shared().url()).await;
    let row = format!("select from {schema}.schedule where policy = 'held' for update");
    holder.run(&format!("begin; {row}")).await;
    let cancelling = (0..3).map(|number| {
        let gate = gate.clone();
        tokio::spawn(async move { gate.cancel_slot(&format!("held-{number}")).await })
    });
    let cancelling: Vec<_> = cancelling.collect();
    holder.until_somebody_waits().await;
    let found = tokio::time::timeout(SOON, gate.slot("free-1")).await;
    assert!(found.expect("a look-up waits for nobody").unwrap().is_some());
    let cancelled = tokio::time::timeout(SOON, gate.cancel_slot("free-2")).await;
    assert!(cancelled.expect("another schedule is free").unwrap().is_some());
    holder.run("rollback").await;
    for cancelled in cancelling {
        assert!(cancelled.await.unwrap().unwrap().is_some());
    }
}

/// Sessions that wait for a table of this schema.
async fn waiting(watcher: &Session, schema: &str) -> i64 {
    watcher
        .number(&format!(
            "select count(*) from pg_locks \
             where not granted and relation = '{schema}.gate'::regclass"
        ))
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_stops_waiting_for_the_database_leaves_nobody_waiting_there() {
    let schema = random::name("s").replace('-', "_");
    let url = Postgres::shared().url();
    let gate = Tollgate::open(&format!("{url}?schema={schema}&deadline=100ms")).await.unwrap();
    let (holder, watcher) = (Session::open(&url).await, Session::open(&url).await);
    holder.run(&format!("begin; lock table {schema}.gate in access exclusive mode")).await;
    for _ in 0..5 {
        assert!(gate.ping().await.is_err(), "nobody can read what is locked");
    }
    // So does one whose caller goes away before its time.
    let gone = gate.clone();
    let listing = tokio::spawn(async move { gone.reload().await });
    holder.until_somebody_waits().await;
    listing.abort();
    let started = Stopwatch::now();
    while waiting(&watcher, &schema).await > 0 {
        assert!(started.elapsed() < SOON, "{} still wait", waiting(&watcher, &schema).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    holder.run("rollback").await;
    gate.ping().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_whose_collector_stopped_waiting_are_told_once_and_heard_of() {
    let (schema, gate) = open().await;
    let raised = Arc::new(AtomicUsize::new(0));
    let rule = AlertRule {
        name: "five".into(),
        refusals: 5,
        within: Span::from_secs(600),
        per: AlertScope::Subject,
        policies: Vec::new(),
    };
    let counter = raised.clone();
    gate.watch_refusals(vec![rule], move |_| {
        counter.fetch_add(1, SeqCst);
    });
    apply(&gate, "p", r#"limits = [{ name = "user", max = 0, per = "1h", by = ["user"] }]"#).await;
    for _ in 0..5 {
        assert!(!gate.check("p", &[("user", "ada")], 1).await.unwrap().allowed());
    }
    // Whoever commits refusals waits for the holder first.
    let holder = Session::open(&Postgres::shared().url()).await;
    let lock = format!("hashtextextended('{schema}', 1)");
    holder
        .run(&format!(
            "create function {schema}.wait() returns trigger language plpgsql as \
             $$ begin perform pg_advisory_xact_lock({lock}); return null; end $$; \
             create constraint trigger wait after insert or update on {schema}.refusal \
             deferrable initially deferred for each row execute function {schema}.wait(); \
             select pg_advisory_lock({lock})"
        ))
        .await;
    tokio::select! {
        collected = gate.collect_refusals() => panic!("it did not wait: {collected:?}"),
        () = holder.until_somebody_waits() => {}
    }
    holder.run(&format!("select pg_advisory_unlock({lock})")).await;
    let offenders = gate.offenders(Span::from_secs(3600), 10).await.unwrap().offenders;
    assert_eq!(offenders.iter().map(|offender| offender.refused).sum::<u64>(), 5);
    assert_eq!(raised.load(SeqCst), 1, "the alert was heard of");
}
