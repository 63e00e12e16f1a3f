//! Checks against everything that changes what they find: refunds, policies, sweeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate::{Clock, Refunded, Span};

use super::race;
use crate::stage::{Stage, Trial, used};

const MAX: u64 = 20;

fn limit(algorithm: &str, max: u64) -> String {
    format!(r#"limits = [{{ name = "all", max = {max}, per = "60s", algorithm = "{algorithm}" }}]"#)
}

/// Every task checks and gives half of what it got back, some of it twice. What passed and was
/// not given back, `(passed, given back)`.
async fn check_and_refund(trial: &Trial) -> (u64, u64) {
    let results = race(|number| {
        let trial = trial.clone();
        async move {
            let (mut passed, mut given) = (0, 0);
            for round in 0..4 {
                let answer = trial.check(&[], 1).await;
                assert!(used(&answer)[0] <= MAX, "{:?}", answer.decision);
                let Some(receipt) = answer.receipt else { continue };
                passed += 1;
                if (number + round) % 2 == 0 {
                    for _ in 0..=(number % 2) {
                        let refunded = trial.gate.refund(&receipt).await;
                        let refunded = refunded.expect("the store answers");
                        given += u64::from(refunded == Refunded::Done);
                    }
                }
            }
            (passed, given)
        }
    })
    .await;
    results.iter().fold((0, 0), |sum, result| (sum.0 + result.0, sum.1 + result.1))
}

async fn refunds_are_exact(stage: &Stage, algorithm: &str) {
    let trial = stage.trial(&limit(algorithm, MAX)).await;
    let (passed, given) = check_and_refund(&trial).await;
    assert!(given > 0, "some were given back");
    assert_eq!(trial.used(&[]).await, [passed - given], "{algorithm}");
    assert!(passed - given <= MAX, "{algorithm}");
    let left = MAX - (passed - given);
    trial.pass_times(&[], left as u32).await;
    trial.refused_until(&[], 1).await;
}

pub async fn refunds_never_let_more_than_max_stand_in_a_fixed_window(stage: Stage) {
    refunds_are_exact(&stage, "fixed").await;
}

pub async fn refunds_never_let_more_than_max_stand_in_a_sliding_window(stage: Stage) {
    refunds_are_exact(&stage, "sliding").await;
}

/// A bucket may give back less than was spent, when others were given back meanwhile; never more.
pub async fn refunds_never_let_more_than_max_stand_in_a_bucket(stage: Stage) {
    let trial = stage.trial(&limit("bucket", MAX)).await;
    let (passed, given) = check_and_refund(&trial).await;
    assert!(given > 0, "some were given back");
    let stands = trial.used(&[]).await[0];
    assert!(stands <= MAX && stands >= passed - given, "{stands}: {passed} less {given}");
    trial.pass_times(&[], (MAX - stands) as u32).await;
    trial.refused_until(&[], 1).await;
}

pub async fn a_raised_max_is_filled_exactly(stage: Stage) {
    for algorithm in ["fixed", "sliding"] {
        let trial = stage.trial(&limit(algorithm, MAX)).await;
        let allowed = race(|number| {
            let trial = trial.clone();
            async move {
                if number == 0 {
                    trial.apply(&limit(algorithm, 2 * MAX)).await;
                }
                u64::from(trial.check(&[], 1).await.allowed())
            }
        })
        .await;
        let allowed: u64 = allowed.iter().sum();
        assert!((MAX..=2 * MAX).contains(&allowed), "{algorithm}: {allowed}");
        assert_eq!(trial.used(&[]).await, [allowed], "{algorithm}");
        trial.pass_times(&[], (2 * MAX - allowed) as u32).await;
        trial.refused_until(&[], 1).await;
    }
}

pub async fn a_lowered_max_holds_from_the_moment_it_is_applied(stage: Stage) {
    for algorithm in ["fixed", "sliding"] {
        let trial = stage.trial(&limit(algorithm, 2 * MAX)).await;
        let applied = Arc::new(AtomicBool::new(false));
        let allowed = race(|number| {
            let (trial, applied) = (trial.clone(), applied.clone());
            async move {
                if number == 0 {
                    trial.apply(&limit(algorithm, MAX)).await;
                    applied.store(true, Ordering::SeqCst);
                }
                let holds = applied.load(Ordering::SeqCst);
                let answer = trial.check(&[], 1).await;
                let standing = answer.decision.limits[0].standing;
                if holds {
                    assert_eq!(standing.max, MAX, "applied before this check began");
                }
                if answer.allowed() {
                    assert!(standing.used <= standing.max);
                }
                u64::from(answer.allowed())
            }
        })
        .await;
        let allowed: u64 = allowed.iter().sum();
        assert!((MAX..=2 * MAX).contains(&allowed), "{algorithm}: {allowed}");
        let standing = trial.check(&[], 1).await.decision.limits[0].standing;
        assert_eq!((standing.used, standing.remaining()), (allowed, 0), "{algorithm}");
    }
}

/// Old keys go while new ones are counted: of the new ones nothing is lost.
pub async fn sweeping_meanwhile_loses_nothing(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "user", max = 3, per = "60s", by = ["user"] },
                { name = "all",  max = 150, per = "60s", algorithm = "sliding" },
            ]"#,
        )
        .await;
    for round in 0..3 {
        let allowed = race(|number| {
            let (trial, gate) = (trial.clone(), stage.gate.clone());
            async move {
                let user = format!("u{number}-{round}");
                let mut allowed = 0;
                for _ in 0..4 {
                    allowed += u64::from(trial.check(&[("user", &user)], 1).await.allowed());
                    if number % 8 == 0 {
                        gate.sweep().await.expect("the store sweeps");
                    }
                }
                allowed
            }
        })
        .await;
        assert!(allowed.iter().all(|allowed| *allowed <= 3));
        assert_eq!(allowed.iter().sum::<u64>(), 150, "64 times 3 would be more");
        assert_eq!(trial.used(&[("user", "nobody")]).await, [0, 150]);
        let now = stage.clock.now();
        stage.clock.set(now.plus(Span::from_secs(120)));
    }
}
