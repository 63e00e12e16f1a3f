//! Refusals repeated from memory: when, for how long, and never too many allowed.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use testkit::servers::Postgres;
use testkit::{ManualClock, random};
use tollgate::{Clock, IdempotencyKey, OnceAnswer, Policy, Refunded, Span, Tollgate};

const ADA: &[(&str, &str)] = &[("user", "ada"), ("ip", "192.0.2.1")];

fn policy(max: u64) -> Policy {
    let limits = format!(
        r#"limits = [
            {{ name = "user", max = {max}, per = "1h", by = ["user"], algorithm = "sliding" }},
            {{ name = "ip", max = 1000, per = "1h", by = ["ip"], algorithm = "bucket" }},
        ]"#
    );
    Policy::from_toml("p", &limits).unwrap()
}

struct Ground {
    url: String,
    clock: ManualClock,
    gate: Tollgate,
}

async fn open(setting: &str) -> Ground {
    let schema = random::name("s").replace('-', "_");
    let url = format!("{}?schema={schema}&deadline=10s{setting}", Postgres::shared().url());
    let clock = ManualClock::start();
    let gate = Tollgate::open_with_clock(&url, clock.shared()).await.unwrap();
    gate.apply(&policy(2), "test").await.unwrap();
    Ground { url, clock, gate }
}

impl Ground {
    async fn instance(&self) -> Tollgate {
        Tollgate::open_with_clock(&self.url, self.clock.shared()).await.unwrap()
    }

    fn shielded(&self) -> u64 {
        self.gate.stats().shielded
    }
}

/// Spends all there is; the receipts.
async fn exhaust(gate: &Tollgate) -> Vec<String> {
    let mut receipts = Vec::new();
    while let Some(receipt) = gate.check("p", ADA, 1).await.unwrap().receipt {
        receipts.push(receipt);
    }
    receipts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_repeated_without_the_database_for_a_second() {
    let ground = open("").await;
    let receipts = exhaust(&ground.gate).await;
    assert_eq!((receipts.len(), ground.shielded()), (2, 0));
    let first = ground.gate.peek("p", ADA, 1).await.unwrap().decision;
    let batched = ground.gate.stats().decisions_batched;
    for step in 0..10 {
        let again = ground.gate.check("p", ADA, 1).await.unwrap().decision;
        assert_eq!(again.retry_at(), first.retry_at());
        assert_eq!(again.limits, first.limits, "step {step}");
        assert_eq!(again.decided_at, ground.clock.now());
        ground.clock.advance(Span::from_micros(100_000).unwrap());
    }
    assert_eq!((ground.shielded(), ground.gate.stats().decisions_batched), (10, batched));
    assert!(!ground.gate.check("p", ADA, 1).await.unwrap().allowed());
    assert_eq!(ground.shielded(), 10, "after a second the database is asked again");
    assert_eq!(ground.gate.stats().decisions_batched, batched + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shield_that_is_off_repeats_nothing() {
    let ground = open("&shield=off").await;
    exhaust(&ground.gate).await;
    for _ in 0..3 {
        assert!(!ground.gate.check("p", ADA, 1).await.unwrap().allowed());
    }
    assert_eq!(ground.shielded(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_refused_is_remembered_and_smaller_costs_are_asked_for() {
    let ground = open("").await;
    ground.gate.check("p", ADA, 1).await.unwrap();
    assert!(!ground.gate.check("p", ADA, 2).await.unwrap().allowed());
    assert!(!ground.gate.check("p", ADA, 2).await.unwrap().allowed());
    assert_eq!(ground.shielded(), 1);
    assert!(ground.gate.check("p", ADA, 1).await.unwrap().allowed(), "one is left");
    assert!(!ground.gate.check("p", ADA, 1).await.unwrap().allowed());
    let bob = [("user", "bob"), ("ip", "192.0.2.1")];
    assert!(ground.gate.check("p", &bob, 1).await.unwrap().allowed(), "bob shares only the ip");
    assert_eq!(ground.shielded(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_ends_at_its_own_instant_if_that_is_sooner() {
    let ground = open("").await;
    let short = r#"limits = [{ name = "all", max = 1, per = "PT0.2S", algorithm = "bucket" }]"#;
    ground.gate.apply(&Policy::from_toml("short", short).unwrap(), "test").await.unwrap();
    assert!(ground.gate.check("short", &[], 1).await.unwrap().allowed());
    let retry_at = ground.gate.check("short", &[], 1).await.unwrap().decision.retry_at().unwrap();
    assert_eq!(
        ground.gate.check("short", &[], 1).await.unwrap().decision.retry_at(),
        Some(retry_at)
    );
    assert_eq!(ground.shielded(), 1);
    ground.clock.set(retry_at);
    assert!(ground.gate.check("short", &[], 1).await.unwrap().allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_here_is_felt_at_once_and_one_elsewhere_within_a_second() {
    let ground = open("").await;
    let elsewhere = ground.instance().await;
    let mut receipts = exhaust(&ground.gate).await;
    assert_eq!(ground.gate.refund(&receipts.pop().unwrap()).await.unwrap(), Refunded::Done);
    assert!(ground.gate.check("p", ADA, 1).await.unwrap().allowed(), "given back here");
    assert!(!ground.gate.check("p", ADA, 1).await.unwrap().allowed());
    assert_eq!(elsewhere.refund(&receipts.pop().unwrap()).await.unwrap(), Refunded::Done);
    assert!(!ground.gate.check("p", ADA, 1).await.unwrap().allowed(), "not known here yet");
    ground.clock.advance(Span::from_secs(1));
    assert!(ground.gate.check("p", ADA, 1).await.unwrap().allowed());
    assert!(!ground.gate.check("p", ADA, 1).await.unwrap().allowed(), "and one is all there was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raised_max_is_felt_at_once_here_and_within_a_second_elsewhere() {
    let ground = open("").await;
    let elsewhere = ground.instance().await;
    exhaust(&ground.gate).await;
    assert!(!elsewhere.check("p", ADA, 1).await.unwrap().allowed());
    ground.gate.apply(&policy(4), "test").await.unwrap();
    assert!(ground.gate.check("p", ADA, 1).await.unwrap().allowed());
    ground.clock.advance(Span::from_secs(1));
    assert!(elsewhere.check("p", ADA, 1).await.unwrap().allowed());
    assert!(!elsewhere.check("p", ADA, 1).await.unwrap().allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_under_an_idempotency_key_goes_past_the_shield() {
    let ground = open("").await;
    let elsewhere = ground.instance().await;
    let receipts = exhaust(&ground.gate).await;
    let key = IdempotencyKey { scope: b"test", key: "k" };
    let mut asked = ground.gate.check_once(key, "p", ADA, 1, |_| vec![1]).await.unwrap();
    assert!(matches!(&asked, OnceAnswer::Fresh(answer) if !answer.allowed()));
    elsewhere.refund(&receipts[0]).await.unwrap();
    assert!(!ground.gate.check("p", ADA, 1).await.unwrap().allowed(), "the shield is up");
    asked = ground.gate.check_once(key, "p", ADA, 1, |_| vec![1]).await.unwrap();
    assert!(matches!(&asked, OnceAnswer::Fresh(answer) if answer.allowed()));
}

/// What was swept holds time still until the clock has come there again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_refusal_is_not_ahead_of_a_clock_that_was_set_back() {
    let ground = open("").await;
    let gone = ground.gate.check("p", &[("user", "bob"), ("ip", "192.0.2.2")], 1).await.unwrap();
    assert_eq!(ground.gate.refund(&gone.receipt.unwrap()).await.unwrap(), Refunded::Done);
    exhaust(&ground.gate).await;
    ground.clock.advance(Span::from_secs(1));
    ground.gate.sweep().await.unwrap();
    ground.clock.step_back(Span::from_secs(2));
    let held = ground.gate.now();
    assert!(held > ground.clock.now(), "bob's key is gone, and with it all time before");
    for _ in 0..2 {
        let refused = ground.gate.check("p", ADA, 1).await.unwrap().decision;
        assert_eq!((refused.allowed(), refused.decided_at), (false, held));
        ground.clock.advance(Span::from_micros(400_000).unwrap());
    }
    assert_eq!(ground.shielded(), 1, "the second one");
}
