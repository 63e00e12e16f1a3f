//! What a caller sees when PostgreSQL is down, slow, locked, restarted or cut off.
//!
//! Each test has a server or a network of its own to break.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "postgres_faults/ground.rs"]
mod ground;
#[path = "postgres_faults/session.rs"]
mod session;

use std::time::{Duration, Instant as Stopwatch};

use ground::{DEADLINE, Ground, ONE_LIMIT, SLACK, apply_all, open, open_with};
use session::Session;
use testkit::servers::{Moment, Postgres, Proxy};
use tollgate::{Degraded, Error, IdempotencyKey, OnceAnswer, SlotAsk, StoreErrorKind, Tollgate};

/// While the store is away, every call has its answer in time, and the answer is the policy's.
async fn every_policy_answers_in_time(ground: &Ground) {
    for round in 0..3 {
        let refused = ground.check_in_time("refuse", "ada").await.unwrap_err();
        assert!(matches!(refused, Error::Store(_)), "round {round}: {refused}");
        let allowed = ground.check_in_time("allow", "ada").await.unwrap();
        assert_eq!((allowed.allowed(), allowed.degraded), (true, Some(Degraded::Allowed)));
        let local = ground.check_in_time("local", "ada").await.unwrap();
        assert_eq!((local.allowed(), local.degraded), (true, Some(Degraded::Local)));
    }
}

/// Once it is known to be away, nobody waits for it.
async fn nobody_waits_any_more(ground: &Ground) {
    let started = Stopwatch::now();
    for _ in 0..50 {
        ground.check("refuse", "ada").await.unwrap_err();
    }
    let took = started.elapsed();
    assert!(took < 10 * DEADLINE, "50 calls in a row took {took:?}: each waits its turn");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_not_there_is_a_clear_error() {
    let postgres = Postgres::start();
    let url = postgres.url();
    postgres.stop();
    let started = Stopwatch::now();
    let error = Tollgate::open(&url).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(6));
    assert!(error.to_string().contains("PostgreSQL cannot be reached"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_store_is_answered_for_and_used_again_within_a_second() {
    let postgres = Postgres::start();
    let ground = open(&postgres.url()).await;
    apply_all(&ground).await;
    assert!(ground.check("local", "ada").await.unwrap().degraded.is_none());
    postgres.stop();
    every_policy_answers_in_time(&ground).await;
    nobody_waits_any_more(&ground).await;
    postgres.start_again();
    let recovery = ground.recovery("refuse", "ada").await;
    assert!(recovery < Duration::from_secs(1) + SLACK, "{recovery:?} after it was back");
    // What was counted in memory meanwhile is dropped: one before, one now.
    ground.recovery("local", "ada").await;
    assert_eq!(ground.used("local", "ada").await, 2);
}

/// Such a refusal says nothing about the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_of_this_instance_outlive_a_refusal_repeated_from_memory() {
    let postgres = Postgres::start();
    let ground = open(&postgres.url()).await;
    apply_all(&ground).await;
    while ground.check("refuse", "bob").await.unwrap().allowed() {}
    postgres.kill();
    for used in 1..=4 {
        // Repeated for a second, and an error after that.
        let _ = ground.check("refuse", "bob").await;
        let local = ground.check("local", "ada").await.unwrap();
        assert_eq!(
            (local.degraded, local.decision.limits[0].standing.used),
            (Some(Degraded::Local), used)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_restarts_between_two_calls_is_not_noticed() {
    let postgres = Postgres::start();
    let ground = open(&postgres.url()).await;
    let patient = Tollgate::open(&format!("{}&deadline=10s", ground.url)).await.unwrap();
    let ground = Ground { gate: patient, url: ground.url };
    ground.apply("p", ONE_LIMIT).await;
    ground.check("p", "ada").await.unwrap();
    postgres.restart();
    assert!(ground.check("p", "ada").await.unwrap().degraded.is_none());
    assert_eq!(ground.used("p", "ada").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_store_has_everything_that_was_answered() {
    let postgres = Postgres::start();
    let ground = open(&postgres.url()).await;
    ground.apply("p", r#"limits = [{ name = "all", max = 1000000, per = "1d" }]"#).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let gate = ground.gate.clone();
        tasks.spawn(async move {
            let mut allowed = 0;
            while let Ok(answer) = gate.check("p", &[], 1).await {
                allowed += u64::from(answer.allowed());
            }
            allowed
        });
    }
    let started = Stopwatch::now();
    while ground.gate.stats().decisions_batched < 500 {
        assert!(started.elapsed() < Duration::from_secs(20), "the store decides next to nothing");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    postgres.kill();
    let allowed: u64 = tasks.join_all().await.into_iter().sum();
    postgres.start_again();
    ground.recovery("p", "ada").await;
    let used = ground.used("p", "ada").await - 1;
    assert!(allowed >= 500 && used >= allowed, "{allowed} were allowed and {used} are counted");
    assert!(used <= allowed + 16, "only what was in flight may be counted unanswered: {used}");
}

/// Away for a while and back: answered for meanwhile, waited for by nobody, used again within a second.
async fn is_answered_for(ground: &Ground, go_away: impl FnOnce(), come_back: impl FnOnce()) {
    apply_all(ground).await;
    ground.check("refuse", "ada").await.unwrap();
    go_away();
    every_policy_answers_in_time(ground).await;
    nobody_waits_any_more(ground).await;
    come_back();
    let recovery = ground.recovery("refuse", "ada").await;
    assert!(recovery < Duration::from_secs(1) + SLACK, "{recovery:?} after it was back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_hangs_is_answered_for_and_used_again_within_a_second() {
    let postgres = Postgres::start();
    let ground = open(&postgres.url()).await;
    is_answered_for(&ground, || postgres.pause(), || postgres.resume()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_swallows_everything_is_answered_for() {
    let postgres = Postgres::shared();
    let proxy = Proxy::start(postgres.port());
    let ground = open(&proxy.through(&postgres.url())).await;
    is_answered_for(&ground, || proxy.stall(), || proxy.pass()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_is_answered_for_by_the_deadline_of_a_check() {
    let postgres = Postgres::shared();
    let proxy = Proxy::start(postgres.port());
    let ground = open(&proxy.through(&postgres.url())).await;
    for policy in ["p", "ended"] {
        ground.apply(policy, r#"limits = [{ name = "all", max = 100, per = "1s" }]"#).await;
    }
    let slot = async |policy: &str, event: &str| {
        let ask = SlotAsk { event_id: event.into(), requested_at: None };
        let started = Stopwatch::now();
        let answer = ground.gate.assign_slots(policy, vec![ask]).await;
        let took = started.elapsed();
        assert!(took < DEADLINE + SLACK, "{event} took {took:?}: {answer:?}");
        answer
    };
    slot("p", "before").await.unwrap();
    slot("ended", "given").await.unwrap();
    let no_schedule = r#"limits = [{ name = "all", max = 100, per = "1s", by = ["user"] }]"#;
    ground.apply("ended", no_schedule).await;
    slot("ended", "given").await.unwrap();
    proxy.stall();
    for (policy, event) in [("p", "first"), ("p", "second"), ("ended", "given")] {
        assert!(matches!(slot(policy, event).await, Err(Error::Store(_))), "{event}");
    }
    proxy.pass();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_slower_than_the_deadline_is_answered_for() {
    let postgres = Postgres::shared();
    let proxy = Proxy::start(postgres.port());
    let ground = open(&proxy.through(&postgres.url())).await;
    apply_all(&ground).await;
    ground.check("refuse", "ada").await.unwrap();
    proxy.latency(DEADLINE);
    every_policy_answers_in_time(&ground).await;
    proxy.latency(Duration::ZERO);
    ground.recovery("refuse", "ada").await;
}

/// What is on the wire when a check commits: the first of a key in two round trips, the next, which
/// remembers its state, in one. The proxy looks for the text, or, where that is prepared, for the key.
const COMMITS: [(&str, &[u8], u64); 3] = [
    ("prepare=off", b"commit\0", 0),
    ("prepare=off", b"write_known", 1),
    ("prepare=on", b"ada", 1),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_in_mid_commit_counts_as_having_happened() {
    let postgres = Postgres::shared();
    for (option, commit, used) in COMMITS {
        let proxy = Proxy::start(postgres.port());
        let ground = open_with(&proxy.through(&postgres.url()), option).await;
        ground.apply("p", ONE_LIMIT).await;
        ground.check("p", if used == 0 { "bob" } else { "ada" }).await.unwrap();
        proxy.cut_at(commit, Moment::AtTheAnswer);
        let lost = ground.check_in_time("p", "ada").await.unwrap_err();
        assert!(!proxy.is_armed(), "the commit was cut");
        assert!(matches!(lost, Error::Store(_)), "{lost}");
        ground.recovery("p", "bob").await;
        let lost_count = ground.used("p", "ada").await - used;
        assert_eq!(lost_count, 1, "the answer was lost, the count was not");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_after_a_lost_answer_gets_the_first_one() {
    let postgres = Postgres::shared();
    let proxy = Proxy::start(postgres.port());
    let ground = open(&proxy.through(&postgres.url())).await;
    ground.apply("p", ONE_LIMIT).await;
    ground.check("p", "bob").await.unwrap();
    let key = IdempotencyKey { scope: b"test", key: "again" };
    let subject = [("user", "ada")];
    let receipt = |answer: &tollgate::Answer| answer.receipt.clone().unwrap().into_bytes();
    proxy.cut_at(b"commit\0", Moment::AtTheAnswer);
    ground.gate.check_once(key, "p", &subject, 1, receipt).await.unwrap_err();
    assert!(!proxy.is_armed(), "the commit was cut");
    assert_eq!(ground.used("p", "ada").await, 1, "the answer was lost, the count was not");
    let again = ground.gate.check_once(key, "p", &subject, 1, receipt).await.unwrap();
    let OnceAnswer::Replay(first) = again else { panic!("decided anew: {again:?}") };
    assert_eq!(ground.used("p", "ada").await, 1, "counted once");
    let refunded = ground.gate.refund(std::str::from_utf8(&first).unwrap()).await.unwrap();
    assert_eq!(refunded, tollgate::Refunded::Done, "the replayed receipt is good");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_before_the_commit_arrives_counts_nothing() {
    let postgres = Postgres::shared();
    for (option, commit, used) in COMMITS {
        let proxy = Proxy::start(postgres.port());
        let ground = open_with(&proxy.through(&postgres.url()), option).await;
        ground.apply("p", ONE_LIMIT).await;
        ground.check("p", if used == 0 { "bob" } else { "ada" }).await.unwrap();
        proxy.cut_at(commit, Moment::BeforeTheServer);
        ground.check_in_time("p", "ada").await.unwrap_err();
        assert!(!proxy.is_armed(), "the commit was cut");
        ground.recovery("p", "bob").await;
        assert_eq!(ground.used("p", "ada").await, used);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_somebody_else_holds_stalls_nobody_else() {
    let postgres = Postgres::shared();
    // One lane: everybody is in the way of everybody.
    let ground = open(&postgres.url()).await;
    let ground = Ground {
        gate: Tollgate::open(&format!("{}&lanes=1", ground.url)).await.unwrap(),
        url: ground.url,
    };
    ground.apply("p", ONE_LIMIT).await;
    ground.check("p", "ada").await.unwrap();
    ground.check("p", "bob").await.unwrap();
    let holder = Session::open(&postgres.url()).await;
    let counter = format!("{}.counter", ground.schema());
    holder.run(&format!("begin; select from {counter} where key like '%ada' for update")).await;
    let (held, other) =
        tokio::join!(ground.check_in_time("p", "ada"), ground.check_in_time("p", "bob"));
    let Err(Error::Store(held)) = held else { panic!("{held:?}") };
    assert_eq!(held.kind(), StoreErrorKind::Contended);
    other.unwrap();
    // From now on the held key is known: it is refused at once, and the others do not wait.
    let started = Stopwatch::now();
    for number in 0..100 {
        ground.check("p", "ada").await.unwrap_err();
        ground.check("p", &format!("user {}", number % 7)).await.unwrap();
    }
    let took = started.elapsed();
    // A hundred that wait for the lock would take 100 seconds.
    assert!(took < Duration::from_secs(10), "200 calls took {took:?}");
    holder.run("rollback").await;
    let recovery = ground.recovery("p", "ada").await;
    assert!(recovery < Duration::from_secs(1) + SLACK, "{recovery:?} after it was let go");
    assert_eq!(ground.used("p", "ada").await, 2, "nothing was counted while it was held");
}

/// A remembered state is written at once, or not: whoever waited there would hold up its lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_known_key_that_somebody_else_holds_is_waited_for_the_long_way() {
    let postgres = Postgres::shared();
    let ground = open(&postgres.url()).await;
    ground.apply("p", ONE_LIMIT).await;
    ground.check("p", "ada").await.unwrap();
    ground.check("p", "ada").await.unwrap();
    let holder = Session::open(&postgres.url()).await;
    holder.run(&format!("begin; select from {}.counter for update", ground.schema())).await;
    let gate = ground.gate.clone();
    let held = tokio::spawn(async move { gate.check("p", &[("user", "ada")], 1).await });
    let waiting = format!(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
         and query like '%{}%lock_batch%'",
        ground.schema()
    );
    let started = Stopwatch::now();
    while postgres.psql(&waiting) == "0" {
        assert!(started.elapsed() < Duration::from_secs(4), "it waits elsewhere");
        assert!(!held.is_finished(), "it was answered while the key was held");
    }
    holder.run("rollback").await;
    assert!(held.await.unwrap().unwrap().allowed());
    assert_eq!(ground.used("p", "ada").await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_somebody_else_locks_is_answered_for() {
    let postgres = Postgres::shared();
    let ground = open(&postgres.url()).await;
    apply_all(&ground).await;
    ground.check("refuse", "ada").await.unwrap();
    let holder = Session::open(&postgres.url()).await;
    holder.run(&format!("begin; lock table {}.counter", ground.schema())).await;
    every_policy_answers_in_time(&ground).await;
    holder.run("rollback").await;
    let recovery = ground.recovery("refuse", "ada").await;
    assert!(recovery < Duration::from_secs(1) + SLACK, "{recovery:?} after it was let go");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_stops_in_mid_batch_holds_nobody_up_for_long() {
    let postgres = Postgres::shared();
    let proxy = Proxy::start(postgres.port());
    let healthy = open(&postgres.url()).await;
    healthy.apply("p", ONE_LIMIT).await;
    let through = proxy.through(&healthy.url);
    let stopping = Tollgate::open(&through).await.unwrap();
    let ada = [("user", "ada")];
    healthy.check("p", "ada").await.unwrap();
    stopping.check("p", &[("user", "bob")], 1).await.unwrap();
    // It gets its locks, and is stopped on the way to the next statement.
    let holder = Session::open(&postgres.url()).await;
    holder.run(&format!("begin; lock table {}.gate", healthy.schema())).await;
    let stopped = tokio::spawn(async move { stopping.check("p", &ada, 1).await });
    holder.until_somebody_waits().await;
    proxy.stall();
    holder.run("rollback").await;
    assert!(matches!(healthy.check_in_time("p", "ada").await, Err(Error::Store(_))));
    let recovery = healthy.recovery("p", "ada").await;
    assert!(recovery < Duration::from_secs(2) + SLACK, "{recovery:?}");
    stopped.await.unwrap().unwrap_err();
    assert_eq!(healthy.used("p", "ada").await, 2, "what never arrived was not counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_is_read_after_the_lock_is_held() {
    let postgres = Postgres::shared();
    let ground = open(&postgres.url()).await;
    ground.apply("p", ONE_LIMIT).await;
    ground.check("p", "ada").await.unwrap();
    let holder = Session::open(&postgres.url()).await;
    let counter = format!("{}.counter", ground.schema());
    holder.run(&format!("begin; select from {counter} for update")).await;
    // One that remembers nothing of ada: it waits behind the row, as long as that takes.
    let gate = Tollgate::open(&format!("{}&deadline=20s", ground.url)).await.unwrap();
    let waiting = tokio::spawn(async move { gate.check("p", &[("user", "ada")], 1).await });
    holder.until_somebody_waits().await;
    let released_at = holder.clock_micros().await;
    holder.run("rollback").await;
    let decided_at = waiting.await.unwrap().unwrap().decision.decided_at;
    assert!(
        decided_at.as_micros() >= released_at,
        "decided {} µs before it could have had the lock",
        released_at - decided_at.as_micros()
    );
}

/// What a caller makes of its answer is the caller's own code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_panics_counts_nothing_and_stops_nobody() {
    let ground = open(&Postgres::shared().url()).await;
    apply_all(&ground).await;
    for round in 0..3 {
        let key = IdempotencyKey { scope: b"test", key: "once" };
        let subject = [("user", "ada")];
        let panics = |_: &_| panic!("a mistake of the caller");
        let once = ground.gate.check_once(key, "refuse", &subject, 1, panics).await;
        let Err(Error::Store(error)) = once else { panic!("{once:?}") };
        assert!(error.to_string().contains("panicked"), "{error}");
        let answer = ground.check_in_time("refuse", "ada").await.unwrap();
        let used = answer.limits().next().unwrap().1.standing.used;
        assert_eq!(used, round + 1, "only what was answered is counted");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_store_does_nothing_more() {
    let ground = open(&Postgres::shared().url()).await;
    apply_all(&ground).await;
    ground.apply("slots", r#"limits = [{ name = "all", max = 9, per = "1s" }]"#).await;
    ground.gate.close();
    let is_closed = |error: Error| assert!(error.to_string().contains("closed"), "{error}");
    is_closed(ground.check("refuse", "ada").await.unwrap_err());
    is_closed(ground.gate.sweep().await.unwrap_err());
    let event = SlotAsk { event_id: "e".to_owned(), requested_at: None };
    is_closed(ground.gate.assign_slots("slots", vec![event]).await.unwrap_err());
}

/// The store has a thread of its own: nothing depends on the runtime that opened it.
#[test]
fn a_store_outlives_the_runtime_that_opened_it() {
    let opener = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ground = opener.block_on(async {
        let ground = open(&Postgres::shared().url()).await;
        apply_all(&ground).await;
        ground
    });
    let check = || ground.gate.check_blocking("refuse", &[("user", "ada")], 1).unwrap();
    assert_eq!(check().limits[0].standing.used, 1, "while nobody drives that runtime");
    drop(opener);
    assert_eq!(check().limits[0].standing.used, 2, "after it is gone");
    let later = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    later.block_on(apply_all(&ground));
}
