//! Checks against checks.

use std::collections::HashMap;

use tollgate::{IdempotencyKey, OnceAnswer};

use super::race;
use crate::random;
use crate::stage::{Stage, used};

/// Each task asks this often: far more than fits.
const ROUNDS: u32 = 4;

async fn exactly_max_pass(stage: &Stage, algorithm: &str, maxima: &[u64]) {
    let limits: Vec<String> = maxima
        .iter()
        .map(|max| {
            format!(
                r#"{{ name = "l{max}", max = {max}, per = "60s", algorithm = "{algorithm}", by = ["user"] }}"#
            )
        })
        .collect();
    let trial = stage.trial(&format!("limits = [{}]", limits.join(", "))).await;
    let allowed = race(|_| {
        let trial = trial.clone();
        async move {
            let mut allowed = 0;
            for _ in 0..ROUNDS {
                allowed += u64::from(trial.check(&[("user", "ada")], 1).await.allowed());
            }
            allowed
        }
    })
    .await;
    let least = *maxima.iter().min().expect("there is a limit");
    assert_eq!(allowed.iter().sum::<u64>(), least, "{algorithm}");
    assert_eq!(trial.used(&[("user", "ada")]).await, vec![least; maxima.len()], "{algorithm}");
}

pub async fn exactly_max_pass_a_fixed_window(stage: Stage) {
    exactly_max_pass(&stage, "fixed", &[100]).await;
}

pub async fn exactly_max_pass_a_sliding_window(stage: Stage) {
    exactly_max_pass(&stage, "sliding", &[100]).await;
}

pub async fn exactly_max_pass_a_bucket(stage: Stage) {
    exactly_max_pass(&stage, "bucket", &[100]).await;
}

pub async fn exactly_max_pass_three_fixed_windows_at_once(stage: Stage) {
    exactly_max_pass(&stage, "fixed", &[150, 100, 120]).await;
}

pub async fn exactly_max_pass_three_sliding_windows_at_once(stage: Stage) {
    exactly_max_pass(&stage, "sliding", &[150, 100, 120]).await;
}

pub async fn exactly_max_pass_three_buckets_at_once(stage: Stage) {
    exactly_max_pass(&stage, "bucket", &[150, 100, 120]).await;
}

/// Requests that share keys crosswise, in every order: nobody waits for ever, every key is exact.
pub async fn keys_that_cross_are_all_exact(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "all", max = 150, per = "60s", algorithm = "sliding" },
                { name = "a",   max = 40,  per = "60s", by = ["a"] },
                { name = "b",   max = 25,  per = "60s", by = ["b"], algorithm = "bucket" },
            ]"#,
        )
        .await;
    let values = |number: u32| (format!("a{}", number % 5), format!("b{}", number % 7));
    let passed = race(|number| {
        let trial = trial.clone();
        async move {
            let mut passed = Vec::new();
            for round in 0..ROUNDS {
                let (a, b) = values(number * ROUNDS + round);
                if trial.check(&[("a", &a), ("b", &b)], 1).await.allowed() {
                    passed.push((a, b));
                }
            }
            passed
        }
    })
    .await;
    let mut counts: HashMap<String, u64> = HashMap::new();
    let passed: Vec<_> = passed.into_iter().flatten().collect();
    for (a, b) in &passed {
        *counts.entry(a.clone()).or_default() += 1;
        *counts.entry(b.clone()).or_default() += 1;
    }
    // 256 ask, seven or eight for each pair. If "all" refused nobody, then nobody of a pair of which neither is
    // full was refused; and however many of each are full, that is more than 150.
    assert_eq!(passed.len(), 150);
    for number in 0..35 {
        let (a, b) = values(number);
        let answer = trial.peek(&[("a", &a), ("b", &b)], 1).await;
        let of = |value: &str| counts.get(value).copied().unwrap_or(0);
        assert_eq!(used(&answer), [passed.len() as u64, of(&a), of(&b)]);
        assert!(of(&a) <= 40 && of(&b) <= 25);
    }
}

pub async fn weighted_costs_never_pass_above_max_and_what_fits_is_accepted(stage: Stage) {
    for algorithm in ["fixed", "sliding", "bucket"] {
        let trial = stage
            .trial(&format!(
                r#"limits = [{{ name = "all", max = 300, per = "60s", algorithm = "{algorithm}" }}]"#
            ))
            .await;
        let costs = race(|number| {
            let trial = trial.clone();
            async move {
                let mut costs = Vec::new();
                for round in 0..ROUNDS {
                    let cost = (number * 5 + round * 3) % 7 + 2;
                    costs.push((cost, trial.check(&[], cost).await.allowed()));
                }
                costs
            }
        })
        .await;
        let costs: Vec<_> = costs.into_iter().flatten().collect();
        let spent: u32 = costs.iter().filter(|(_, allowed)| *allowed).map(|(cost, _)| cost).sum();
        assert!(spent <= 300, "{algorithm}: {spent} of 300");
        let left = 300 - spent;
        for (cost, _) in costs.iter().filter(|(_, allowed)| !allowed) {
            assert!(*cost > left, "{algorithm}: {cost} was refused with {left} left to the end");
        }
        if left > 0 {
            trial.pass(&[], left).await;
        }
        trial.refused_until(&[], 1).await;
    }
}

pub async fn exactly_max_pass_under_keys_and_without(stage: Stage) {
    let trial = stage.trial(r#"limits = [{ name = "all", max = 40, per = "60s" }]"#).await;
    let allowed = race(|number| {
        let trial = trial.clone();
        async move {
            let key = random::name("key");
            let key = IdempotencyKey { scope: b"race", key: &key };
            let mut allowed = u32::from(trial.check(&[], 1).await.allowed());
            if number % 4 == 0 {
                for _ in 0..2 {
                    let answer = trial.gate.check_once(key, &trial.name, &[], 1, |_| vec![1]).await;
                    if let OnceAnswer::Fresh(answer) = answer.expect("the store answers") {
                        allowed += u32::from(answer.allowed());
                    }
                }
            }
            allowed
        }
    })
    .await;
    assert_eq!(allowed.iter().sum::<u32>(), 40);
    assert_eq!(trial.used(&[]).await, [40]);
}
