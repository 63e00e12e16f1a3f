//! The instants an answer promises: `retry_at` to the microsecond, `resets_at`, and `remaining`.

mod support;

use proptest::prelude::*;
use support::*;
use tollgate_core::{Decision, Instant, Outcome, Rule, Verdict};

/// Refused with the same promise one microsecond before `retry_at`, allowed at it.
fn assert_promise_kept(gate: &Gate, decision: &Decision) {
    let Some(retry_at) = decision.retry_at() else { return };
    assert!(retry_at > decision.decided_at);
    let (cost, retry_at) = (decision.cost.get(), retry_at.as_micros());

    let early = gate.peek(cost, retry_at - 1);
    assert_eq!(early.outcome, decision.outcome, "asked one microsecond early");
    assert_eq!(gate.clone().spend(cost, retry_at - 1).outcome, decision.outcome);

    assert!(gate.peek(cost, retry_at).allowed(), "a peek at retry_at: {decision:?}");
    let there = gate.clone().spend(cost, retry_at);
    assert!(there.allowed(), "a spend at retry_at: {decision:?}");
    assert_eq!(there.decided_at, at(retry_at));
}

/// Exactly `remaining` more would fit, whatever was asked.
fn assert_remaining_fits(gate: &Gate, decision: &Decision) {
    let remaining = gate.limits.iter().zip(&decision.limits).filter(|(limit, _)| !limit.shadow);
    let Some(remaining) = remaining.map(|(_, report)| report.standing.remaining()).min() else {
        return;
    };
    let now = decision.decided_at.as_micros();
    let remaining = u32::try_from(remaining).expect("tests keep max small");
    assert!(remaining == 0 || gate.peek(remaining, now).allowed(), "{remaining}: {decision:?}");
    assert!(!gate.peek(remaining + 1, now).allowed(), "more than {remaining}: {decision:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn one_limit_refuses_until_retry_at_and_allows_at_it(
        rule in any_rule(), max in any_max(), steps in any_steps(), start in any_start(),
        clock in any_clock(),
    ) {
        let per = per_of(&rule);
        let mut gate = Gate::of(rule, max);
        let mut now = start;
        for step in steps {
            now = step.apply(clock, now, per);
            gate.limits[0].max = step.max.unwrap_or(gate.limits[0].max);
            let decision = gate.spend(step.cost, now);
            assert_promise_kept(&gate, &decision);
            assert_remaining_fits(&gate, &decision);
            // Any cost, not only the one that was spent.
            assert_promise_kept(&gate, &gate.peek(1 + step.pick as u32 % 24, now));
        }
    }

    #[test]
    fn several_limits_refuse_until_the_longest_wait_and_allow_at_it(
        limits in any_limits(), steps in any_steps(), start in any_start(), clock in any_clock(),
    ) {
        let mut gate = Gate::new(limits);
        let mut now = start;
        for step in steps {
            now = step.apply(clock, now, 150);
            let changed = step.pick % gate.limits.len();
            gate.limits[changed].max = step.max.unwrap_or(gate.limits[changed].max);
            let decision = gate.spend(step.cost, now);
            assert_promise_kept(&gate, &decision);
            assert_remaining_fits(&gate, &decision);
            if let Some(retry_at) = decision.retry_at() {
                let waits = decision.limits.iter().filter(|limit| limit.refuses());
                let waits = waits.map(|limit| match limit.verdict {
                    Verdict::At(wait) => wait,
                    verdict => panic!("{verdict:?} in a refusal that ends"),
                });
                prop_assert_eq!(waits.max(), Some(retry_at));
            }
        }
    }

    #[test]
    fn used_and_remaining_make_max(
        limits in any_limits(), steps in any_steps(), start in any_start(), clock in any_clock(),
    ) {
        let mut gate = Gate::new(limits);
        let mut now = start;
        for step in steps {
            now = step.apply(clock, now, 150);
            let changed = step.pick % gate.limits.len();
            gate.limits[changed].max = step.max.unwrap_or(gate.limits[changed].max);
            let decision = gate.spend(step.cost, now);
            for (limit, report) in gate.limits.iter().zip(&decision.limits) {
                let standing = report.standing;
                let holds = match limit.rule {
                    Rule::Bucket { burst: Some(burst), .. } if limit.max > 0 => burst,
                    _ => limit.max,
                };
                prop_assert_eq!(standing.max, holds);
                if standing.used <= standing.max {
                    prop_assert_eq!(standing.used + standing.remaining(), standing.max);
                } else {
                    prop_assert_eq!(standing.remaining(), 0);
                }
            }
        }
    }

    #[test]
    fn at_resets_at_the_whole_of_max_fits_again(
        rule in any_rule(), max in any_max(), steps in any_steps(), start in any_start(),
        clock in any_clock(),
    ) {
        let per = per_of(&rule);
        let mut gate = Gate::of(rule, max);
        let mut now = start;
        for step in steps {
            now = step.apply(clock, now, per);
            gate.limits[0].max = step.max.unwrap_or(gate.limits[0].max);
            let decision = gate.spend(step.cost, now);
            let standing = decision.limits[0].standing;
            let Some(whole) = u32::try_from(standing.max).ok().filter(|whole| *whole > 0) else {
                continue;
            };
            let resets_at = standing.resets_at.as_micros();
            prop_assert!(standing.resets_at >= decision.decided_at);
            prop_assert!(gate.peek(whole, resets_at).allowed(), "{:?}", decision);
            if standing.used > 0 {
                prop_assert!(!gate.peek(whole, resets_at - 1).allowed(), "early: {:?}", decision);
            } else if !matches!(gate.limits[0].rule, Rule::Fixed(_)) {
                prop_assert_eq!(standing.resets_at, decision.decided_at);
            }
        }
    }

    #[test]
    fn more_than_a_limit_holds_never_fits_and_changes_nothing(
        limits in any_limits(), steps in any_steps(), start in any_start(), position in 0..5usize,
        above in 1..4u32,
    ) {
        let mut gate = Gate::new(limits);
        let position = position % gate.limits.len();
        gate.limits[position].shadow = false;
        let quota = gate.limits[position].rule.quota(gate.limits[position].max);
        let cost = u32::try_from(quota.max).expect("tests keep max small") + above;
        prop_assert_eq!(gate.spend(cost, start).outcome, Outcome::NeverFits);
        prop_assert!(gate.keys.0.iter().all(Option::is_none), "a refusal created a key");
        let mut now = start;
        for step in steps {
            now = step.apply(Clock::Stepping, now, 150);
            gate.spend(step.cost, now);
            let decision = gate.spend(cost, now);
            prop_assert_eq!(decision.outcome, Outcome::NeverFits);
            prop_assert_eq!(decision.limits[position].verdict, Verdict::Never);
            prop_assert_eq!(decision.retry_at(), None);
        }
    }

    #[test]
    fn a_maximum_of_zero_refuses_everything_for_ever(
        rule in any_rule(), before in any_max(), cost in 1..50u32, now in any_start(),
    ) {
        let mut gate = Gate::of(rule, before);
        gate.spend(1, now);
        gate.limits[0].max = 0;
        let decision = gate.spend(cost, now);
        prop_assert_eq!(decision.outcome, Outcome::NeverFits);
        prop_assert_eq!(decision.limits[0].standing.remaining(), 0);
        let mut fresh = Gate::of(gate.limits[0].rule.clone(), 0);
        prop_assert_eq!(fresh.spend(cost, now).outcome, Outcome::NeverFits);
        prop_assert!(fresh.keys.0[0].is_none());
    }
}

#[test]
fn waits_are_told_in_whole_seconds_rounded_up_and_at_least_one() {
    let mut gate = Gate::of(fixed(10_000_000), 1);
    let after = |gate: &Gate, now| gate.peek(1, now).retry_after_secs();
    assert_eq!(after(&gate, 0), None);
    assert!(gate.spend(1, 0).allowed());
    assert_eq!(after(&gate, 0), Some(10));
    assert_eq!(after(&gate, 1), Some(10));
    assert_eq!(after(&gate, 7_999_999), Some(3));
    assert_eq!(after(&gate, 8_000_000), Some(2));
    assert_eq!(after(&gate, 9_999_999), Some(1));
    assert_eq!(gate.peek(2, 0).retry_after_secs(), None);
}

#[test]
fn a_wait_for_many_units_is_for_the_instant_when_enough_have_left() {
    let mut gate = Gate::of(sliding(60, 1), 6);
    for now in [0, 10, 20] {
        assert!(gate.spend(2, now).allowed());
    }
    let waits = [1, 2, 3, 4, 5, 6].map(|cost| gate.peek(cost, 30).retry_at());
    assert_eq!(waits, [60, 60, 70, 70, 80, 80].map(|wait| Some(at(wait))));
}

#[test]
fn a_bucket_whose_max_does_not_divide_its_window_waits_for_the_next_whole_microsecond() {
    let mut gate = Gate::of(bucket(10, None), 3);
    assert!(gate.spend(3, 0).allowed());
    let waits: [Option<Instant>; 3] = [1, 2, 3].map(|cost| gate.peek(cost, 0).retry_at());
    // A third of 10 µs, kept a hair longer so that three of them are never less than the window.
    assert_eq!(waits, [4, 7, 11].map(|wait| Some(at(wait))));
}
