//! Several limits in one decision: all or none.

use tollgate::core::{Outcome, Verdict};
use tollgate::{Clock, Span};

use crate::stage::{Stage, used};

/// The cleanup policy of the seed.
const TIERS: &str = r#"limits = [
    { name = "global", max = 1000, per = "60s", algorithm = "sliding" },
    { name = "ip",     max = 5,    per = "60s", algorithm = "sliding", by = ["ip"],    private = true },
    { name = "email",  max = 3,    per = "1h",  algorithm = "sliding", by = ["email"], private = true },
]"#;

pub async fn three_tiers_spend_in_all_or_in_none(stage: Stage) {
    let trial = stage.trial(TIERS).await;
    let ada = [("ip", "203.0.113.7"), ("email", "ada@example.com")];
    for already in 1..=3 {
        let answer = trial.check(&ada, 1).await;
        assert!(answer.allowed());
        assert_eq!(used(&answer), [already; 3]);
    }
    for _ in 0..5 {
        let answer = trial.check(&ada, 1).await;
        assert!(!answer.allowed());
        let refusing: Vec<_> =
            answer.limits().filter(|(_, report)| report.refuses()).map(|(name, _)| name).collect();
        assert_eq!(refusing, ["email"]);
        assert_eq!(used(&answer), [3, 3, 3], "a refusal spends nowhere");
    }
    let bob = [("ip", "203.0.113.7"), ("email", "bob@example.com")];
    trial.pass_times(&bob, 2).await;
    assert_eq!(used(&trial.check(&bob, 1).await), [5, 5, 2], "the address is spent");
    let eve = [("ip", "198.51.100.1"), ("email", "eve@example.com")];
    assert_eq!(used(&trial.check(&eve, 1).await), [6, 1, 1]);
}

pub async fn the_wait_is_the_longest_of_the_refusing_limits(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "minute", max = 1, per = "60s" },
                { name = "hour",   max = 1, per = "1h" },
                { name = "second", max = 1, per = "1s" },
                { name = "day",    max = 9, per = "1d" },
            ]"#,
        )
        .await;
    trial.pass(&[], 1).await;
    let hour = Span::from_secs(3600);
    let end = stage.clock.now().floor_to(hour).plus(hour);
    assert_eq!(trial.refused_until(&[], 1).await, end);
    stage.wait_until(end.plus_micros(-1));
    assert_eq!(trial.refused_until(&[], 1).await, end);
    stage.wait_until(end);
    trial.pass(&[], 1).await;
}

pub async fn one_limit_that_never_fits_outweighs_any_wait(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "wide",   max = 9, per = "60s" },
                { name = "narrow", max = 3, per = "60s" },
            ]"#,
        )
        .await;
    trial.pass_times(&[], 3).await;
    let answer = trial.check(&[], 4).await;
    assert_eq!(answer.decision.outcome, Outcome::NeverFits);
    assert_eq!(used(&answer), [3, 3]);
}

pub async fn a_shadow_limit_counts_and_reports_but_never_refuses(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "real",   max = 5, per = "60s" },
                { name = "shadow", max = 2, per = "60s", shadow = true },
            ]"#,
        )
        .await;
    for already in 1..=5 {
        let answer = trial.check(&[], 1).await;
        assert!(answer.allowed());
        assert_eq!(used(&answer), [already, already]);
        let shadow = &answer.decision.limits[1];
        assert!(shadow.shadow && !shadow.refuses());
        assert_eq!((shadow.verdict == Verdict::Fits), already <= 2);
        assert_eq!(shadow.standing.remaining(), 2_u64.saturating_sub(already));
    }
    let refused = trial.check(&[], 1).await;
    assert!(!refused.allowed());
    assert_eq!(used(&refused), [5, 5]);
    let never =
        stage.trial(r#"limits = [{ name = "shadow", max = 2, per = "60s", shadow = true }]"#).await;
    never.pass(&[], 9).await;
    assert_eq!(never.used(&[]).await, [9]);
}

pub async fn sixteen_limits_are_one_decision(stage: Stage) {
    let limits: Vec<String> = (0..16)
        .map(|position| {
            let algorithm = ["fixed", "sliding", "bucket"][position % 3];
            let max = 18 - position;
            format!(
                r#"{{ name = "l{position}", max = {max}, per = "1h", algorithm = "{algorithm}" }}"#
            )
        })
        .collect();
    let trial = stage.trial(&format!("limits = [{}]", limits.join(", "))).await;
    trial.pass_times(&[], 3).await;
    let refused = trial.check(&[], 1).await;
    assert!(!refused.allowed());
    assert_eq!(used(&refused), [3; 16], "only the last one was full");
}
