//! Idle keys leave memory and file, and no clock that steps back brings their credit again.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "restart/home.rs"]
mod home;

use std::time::{Duration, Instant as Moment};

use home::{Home, rows};
use testkit::{ManualClock, Stage, Trial};
use tollgate::{Clock, IdempotencyKey, Refunded, Span, Tollgate};

const ALL_KINDS: &str = r#"limits = [
    { name = "fixed",    max = 9, per = "60s", by = ["user"] },
    { name = "calendar", max = 9, per = "minute", timezone = "Europe/Rome", by = ["user"] },
    { name = "sliding",  max = 9, per = "60s", by = ["user"], algorithm = "sliding" },
    { name = "bucket",   max = 9, per = "60s", by = ["user"], algorithm = "bucket" },
]"#;
const USERS: usize = 200;

async fn fill(stage: &Stage) -> Trial {
    let trial = stage.trial(ALL_KINDS).await;
    for number in 0..USERS {
        let user = format!("u{number}");
        let receipt = trial.pass(&[("user", &user)], 3).await;
        // Given back or not, a key is idle once its window is over.
        if number % 10 == 0 {
            assert_eq!(stage.gate.refund(&receipt).await.unwrap(), Refunded::Done);
            trial.pass(&[("user", &user)], 1).await;
        }
    }
    trial
}

async fn idle_keys_go(stage: &Stage) {
    fill(stage).await;
    assert_eq!(stage.gate.stats().keys, USERS * 4);
    stage.gate.sweep().await.expect("the store sweeps");
    assert_eq!(stage.gate.stats().keys, USERS * 4, "all of them are in use");
    stage.clock.advance(Span::from_secs(121));
    stage.gate.sweep().await.expect("the store sweeps");
    assert_eq!(stage.gate.stats().keys, 0);
}

#[tokio::test]
async fn idle_keys_leave_memory() {
    let clock = ManualClock::start();
    let gate = Tollgate::open_with_clock("memory:", clock.shared()).await.unwrap();
    idle_keys_go(&Stage::from((gate, clock))).await;
}

#[tokio::test]
async fn idle_keys_leave_the_file() {
    let home = Home::new();
    let stage = home.open().await;
    idle_keys_go(&stage).await;
    stage.gate.close();
    assert_eq!(rows(&home.file(), "counter"), 0);
}

/// Waits until the store has swept by itself: from then on its time does not go back, with the
/// clock, to before what it removed was over. That is less than 200 seconds ago in these tests.
async fn swept_by_itself(stage: &Stage) {
    let (now, before) = (stage.clock.now(), stage.clock.now().minus(Span::from_secs(200)));
    let begun = Moment::now();
    loop {
        stage.clock.set(before);
        let swept = stage.gate.now() > before;
        stage.clock.set(now);
        if swept {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "the store does not sweep by itself");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn expired_records_and_refunds_leave_the_file_in_passing() {
    let home = Home::new();
    let stage = home.open().await;
    let trial = fill(&stage).await;
    let key = IdempotencyKey { scope: b"me", key: "k1" };
    let user = [("user", "u1")];
    stage.gate.check_once(key, &trial.name, &user, 1, |_| vec![1]).await.unwrap();
    stage.clock.advance(Span::from_secs(121));
    swept_by_itself(&stage).await;
    stage.gate.close();
    assert_eq!(rows(&home.file(), "refund"), 0);
    assert_eq!(rows(&home.file(), "record"), 1, "kept for a day");
    drop((stage, trial));
    let stage = home.open().await;
    stage.clock.advance(Span::from_secs(86_400));
    swept_by_itself(&stage).await;
    stage.gate.close();
    assert_eq!(rows(&home.file(), "record"), 0);
}

/// The counts are gone from the file, so their time must not come again: not even when nothing
/// was decided between the sweep and the restart.
#[tokio::test]
async fn a_restart_after_a_sweep_and_a_step_back_mints_nothing() {
    let home = Home::new();
    let stage = home.open().await;
    let trial = stage.trial(ALL_KINDS).await;
    let ada = [("user", "ada")];
    let start = stage.clock.now();
    trial.pass(&ada, 9).await;
    stage.gate.ping().await.unwrap();
    stage.clock.advance(Span::from_secs(300));
    let over_at = start.plus(Span::from_secs(60));
    stage.gate.sweep().await.expect("the store sweeps");
    drop((stage, trial.gate));
    home.clock.set(start);
    let stage = home.open().await;
    let trial = Trial { gate: stage.gate.clone(), name: trial.name };
    let answer = trial.check(&ada, 1).await;
    assert!(
        !answer.allowed() || answer.decision.decided_at >= over_at,
        "9 of 9 were spent at {start}, and a tenth passed at {}",
        answer.decision.decided_at
    );
}

/// The same for records and refunds: what was removed as over must not be under way again.
#[tokio::test]
async fn a_restart_after_a_sweep_does_not_go_back_in_time() {
    let home = Home::new();
    let stage = home.open().await;
    let trial = stage.trial(ALL_KINDS).await;
    let key = IdempotencyKey { scope: b"me", key: "k1" };
    let ada = [("user", "ada")];
    stage.gate.check_once(key, &trial.name, &ada, 1, |_| vec![1]).await.unwrap();
    stage.clock.advance(Span::from_secs(86_400));
    swept_by_itself(&stage).await;
    let swept_at = stage.clock.now();
    drop((stage, trial));
    home.clock.step_back(Span::from_secs(3600));
    let now = home.open().await.gate.now();
    assert!(now >= swept_at, "swept at {swept_at}, and after the restart it is {now}");
}

/// A clock that was ahead for a moment: what it removed holds time, and nothing else does.
#[tokio::test]
async fn a_sweep_by_a_clock_that_is_ahead_does_not_stop_time() {
    let clock = ManualClock::start();
    let gate = Tollgate::open_with_clock("memory:", clock.shared()).await.unwrap();
    let stage = Stage::from((gate, clock));
    let trial = stage.trial(ALL_KINDS).await;
    let start = stage.clock.now();
    trial.pass(&[("user", "ada")], 3).await;
    stage.clock.advance(Span::from_secs(365 * 86_400));
    stage.gate.sweep().await.expect("the store sweeps");
    stage.clock.set(start);
    assert!(stage.gate.now() <= start.plus(Span::from_secs(181)), "{}", stage.gate.now());
}
