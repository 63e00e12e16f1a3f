//! What each algorithm lets through, and when it says to come back.

use tollgate::core::Outcome;
use tollgate::{Clock, Error, Instant, Span};

use crate::stage::{Stage, Subject, Trial, used};

const ADA: Subject<'static> = &[("user", "ada")];
const SECOND: i64 = 1_000_000;

/// Refused a microsecond before `at`, allowed at it.
async fn passes_exactly_at(stage: &Stage, trial: &Trial, cost: u32, at: Instant) {
    stage.wait_until(at.plus_micros(-1));
    assert_eq!(trial.refused_until(ADA, cost).await, at, "the promise does not move");
    stage.wait_until(at);
    trial.pass(ADA, cost).await;
}

pub async fn exactly_max_pass_in_a_fixed_window_and_retry_at_is_exact(stage: Stage) {
    let trial =
        stage.trial(r#"limits = [{ name = "user", max = 5, per = "60s", by = ["user"] }]"#).await;
    for already in 1..=5 {
        let answer = trial.check(ADA, 1).await;
        assert!(answer.allowed());
        assert_eq!(answer.decision.decided_at, stage.clock.now());
        let standing = answer.decision.limits[0].standing;
        assert_eq!((standing.max, standing.used, standing.remaining()), (5, already, 5 - already));
    }
    let start = stage.clock.now().floor_to(Span::from_secs(60));
    let end = start.plus(Span::from_secs(60));
    let refused = trial.check(ADA, 1).await.decision;
    assert_eq!(refused.outcome, Outcome::Refused { retry_at: end });
    assert_eq!(refused.limits[0].standing.resets_at, end);
    assert_eq!(refused.retry_after_secs(), Some(end.whole_secs_since(stage.clock.now())));
    passes_exactly_at(&stage, &trial, 1, end).await;
    trial.pass_times(ADA, 4).await;
    assert_eq!(trial.refused_until(ADA, 1).await, end.plus(Span::from_secs(60)));
}

pub async fn exactly_max_pass_in_a_sliding_window_and_retry_at_is_exact(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [{ name = "user", max = 5, per = "60s", algorithm = "sliding", by = ["user"] }]"#,
        )
        .await;
    let first = stage.clock.now();
    trial.pass_times(ADA, 2).await;
    stage.wait_until(first.plus_micros(10 * SECOND));
    trial.pass_times(ADA, 3).await;
    // The bucket of one second in which the first two fell counts until its end is a minute old.
    let leaves = |at: Instant| at.floor_to(Span::from_secs(1)).plus_micros(61 * SECOND - 1);
    let retry_at = trial.refused_until(ADA, 1).await;
    assert_eq!(retry_at, leaves(first));
    passes_exactly_at(&stage, &trial, 1, retry_at).await;
    trial.pass(ADA, 1).await;
    let retry_at = trial.refused_until(ADA, 1).await;
    assert_eq!(retry_at, leaves(first.plus_micros(10 * SECOND)));
    passes_exactly_at(&stage, &trial, 1, retry_at).await;
}

pub async fn exactly_max_pass_from_a_bucket_and_retry_at_is_exact(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [{ name = "user", max = 5, per = "60s", algorithm = "bucket", by = ["user"] }]"#,
        )
        .await;
    let first = stage.clock.now();
    trial.pass_times(ADA, 5).await;
    let refused = trial.check(ADA, 1).await.decision;
    let next = first.plus_micros(12 * SECOND);
    assert_eq!(refused.outcome, Outcome::Refused { retry_at: next });
    assert_eq!(refused.limits[0].standing.resets_at, first.plus_micros(60 * SECOND));
    passes_exactly_at(&stage, &trial, 1, next).await;
    assert_eq!(trial.refused_until(ADA, 1).await, first.plus_micros(24 * SECOND));
}

pub async fn retry_at_is_exact_where_the_rate_does_not_divide(stage: Stage) {
    for limit in [
        r#"max = 7, per = "1s", algorithm = "bucket""#,
        r#"max = 7, per = "1s", algorithm = "bucket", burst = 3"#,
        r#"max = 7, per = "61us", algorithm = "sliding""#,
        r#"max = 7, per = "1s", algorithm = "sliding", resolution = "33ms""#,
        r#"max = 7, per = "1000003us""#,
    ] {
        let trial = stage
            .trial(&format!(r#"limits = [{{ name = "user", {limit}, by = ["user"] }}]"#))
            .await;
        for cost in [1, 3, 2, 1, 3, 1] {
            if let Some(retry_at) = trial.check(ADA, cost).await.decision.retry_at() {
                passes_exactly_at(&stage, &trial, cost, retry_at).await;
            }
        }
    }
}

pub async fn retry_at_of_a_weighted_cost_is_when_enough_has_left(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [{ name = "user", max = 6, per = "60s", algorithm = "sliding", resolution = "1s", by = ["user"] }]"#,
        )
        .await;
    let start = stage.clock.now().floor_to(Span::from_secs(1)).plus_micros(SECOND);
    for offset in [0, 10, 20] {
        stage.wait_until(start.plus_micros(offset * SECOND));
        trial.pass(ADA, 2).await;
    }
    let leaves = |offset: i64| start.plus_micros((offset + 61) * SECOND - 1);
    for (cost, offset) in [(1, 0), (2, 0), (3, 10), (4, 10), (5, 20), (6, 20)] {
        assert_eq!(trial.refused_until(ADA, cost).await, leaves(offset), "cost {cost}");
    }
    passes_exactly_at(&stage, &trial, 4, leaves(10)).await;
}

pub async fn a_bucket_passes_its_burst_at_once_and_then_its_rate(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [{ name = "user", max = 60, per = "60s", algorithm = "bucket", burst = 3, by = ["user"] }]"#,
        )
        .await;
    trial.pass_times(ADA, 3).await;
    for _ in 0..5 {
        let retry_at = trial.refused_until(ADA, 1).await;
        assert_eq!(retry_at, stage.clock.now().plus_micros(SECOND));
        passes_exactly_at(&stage, &trial, 1, retry_at).await;
    }
    stage.clock.advance(Span::from_secs(3600));
    trial.pass(ADA, 3).await;
    trial.refused_until(ADA, 1).await;
}

pub async fn a_cost_counts_as_many_units(stage: Stage) {
    for algorithm in ["fixed", "sliding", "bucket"] {
        let trial = stage
            .trial(&format!(
                r#"limits = [{{ name = "user", max = 10, per = "60s", algorithm = "{algorithm}", by = ["user"] }}]"#
            ))
            .await;
        trial.pass(ADA, 4).await;
        trial.pass(ADA, 3).await;
        trial.refused_until(ADA, 4).await;
        let answer = trial.check(ADA, 3).await;
        assert!(answer.allowed(), "{algorithm}: what still fits passes");
        assert_eq!(answer.decision.cost.get(), 3);
        assert_eq!(used(&answer), [10], "{algorithm}");
        trial.refused_until(ADA, 1).await;
    }
}

pub async fn a_cost_above_max_never_fits_and_spends_nothing(stage: Stage) {
    for (limit, most) in [
        (r#"max = 5, per = "60s", algorithm = "fixed""#, 5),
        (r#"max = 5, per = "60s", algorithm = "sliding""#, 5),
        (r#"max = 5, per = "60s", algorithm = "bucket""#, 5),
        (r#"max = 5, per = "60s", algorithm = "bucket", burst = 2"#, 2),
        (r#"max = 5, per = "60s", algorithm = "bucket", burst = 9"#, 9),
    ] {
        let trial = stage
            .trial(&format!(r#"limits = [{{ name = "user", {limit}, by = ["user"] }}]"#))
            .await;
        for cost in [most + 1, u32::MAX] {
            let answer = trial.check(ADA, cost).await;
            assert_eq!(answer.decision.outcome, Outcome::NeverFits, "{limit}");
            assert_eq!(answer.decision.retry_after_secs(), None);
        }
        assert_eq!(trial.used(ADA).await, [0], "{limit}");
        trial.pass(ADA, most).await;
        assert_eq!(trial.check(ADA, most + 1).await.decision.outcome, Outcome::NeverFits);
    }
}

pub async fn a_cost_of_zero_is_an_error(stage: Stage) {
    let trial = stage.trial(r#"limits = [{ name = "all", max = 5, per = "60s" }]"#).await;
    let gate = &stage.gate;
    assert!(matches!(gate.check(&trial.name, &[], 0).await, Err(Error::ZeroCost)));
    assert!(matches!(gate.peek(&trial.name, &[], 0).await, Err(Error::ZeroCost)));
    assert_eq!(trial.used(&[]).await, [0]);
}

pub async fn a_maximum_of_zero_refuses_all(stage: Stage) {
    for algorithm in ["fixed", "sliding", "bucket"] {
        let trial = stage
            .trial(&format!(
                r#"limits = [{{ name = "all", max = 0, per = "60s", algorithm = "{algorithm}" }}]"#
            ))
            .await;
        assert_eq!(trial.check(&[], 1).await.decision.outcome, Outcome::NeverFits, "{algorithm}");
    }
}

pub async fn a_peek_writes_nothing(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "fixed",   max = 2, per = "60s", by = ["user"] },
                { name = "sliding", max = 2, per = "60s", by = ["user"], algorithm = "sliding" },
                { name = "bucket",  max = 2, per = "60s", by = ["user"], algorithm = "bucket" },
            ]"#,
        )
        .await;
    for _ in 0..10 {
        let answer = trial.peek(ADA, 2).await;
        assert!(answer.allowed());
        assert_eq!(used(&answer), [0, 0, 0]);
    }
    trial.pass_times(ADA, 2).await;
    for _ in 0..10 {
        let answer = trial.peek(ADA, 1).await;
        assert!(!answer.allowed());
        assert_eq!(used(&answer), [2, 2, 2]);
    }
}

pub async fn a_peek_reports_what_a_check_would_say(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "fixed",   max = 4, per = "60s", by = ["user"] },
                { name = "sliding", max = 3, per = "60s", by = ["user"], algorithm = "sliding" },
            ]"#,
        )
        .await;
    for cost in [2, 2, 1, 1, 4] {
        let peeked = trial.peek(ADA, cost).await.decision;
        let checked = trial.check(ADA, cost).await.decision;
        assert_eq!(peeked.outcome, checked.outcome);
        assert_eq!(peeked.decided_at, checked.decided_at);
    }
}
