//! Several limits in one decision: all of them or none, and shadow limits among them.

mod support;

use proptest::prelude::*;
use support::*;
use tollgate_core::{Outcome, Rule, Verdict};

fn alone(limits: &[Limited]) -> Vec<Gate> {
    limits.iter().map(|limit| Gate::new(vec![limit.clone()])).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_request_is_counted_in_every_limit_or_in_none(
        limits in any_limits(), steps in any_steps(), start in any_start(), clock in any_clock(),
    ) {
        let mut together = Gate::new(limits.clone());
        let mut alone = alone(&limits);
        let mut now = start;
        for step in steps {
            now = step.apply(clock, now, 150);
            let before = together.keys.clone();
            let decision = together.spend(step.cost, now);
            let decided_at = decision.decided_at.as_micros();

            let each = alone.iter().map(|gate| gate.peek(step.cost, decided_at));
            prop_assert_eq!(decision.allowed(), each.clone().all(|answer| answer.allowed()));
            for (report, answer) in decision.limits.iter().zip(each) {
                prop_assert_eq!(answer.decided_at, decision.decided_at);
                prop_assert_eq!(report.verdict, answer.limits[0].verdict);
            }
            if decision.allowed() {
                for (gate, report) in alone.iter_mut().zip(&decision.limits) {
                    let single = gate.spend(step.cost, decided_at);
                    prop_assert_eq!(&single.limits[0], report);
                }
                let changed = before.0.iter().zip(&together.keys.0).all(|(old, new)| old != new);
                prop_assert!(changed, "allowed, and not counted everywhere");
            }
            let states = alone.iter().map(|gate| gate.keys.0[0].clone()).collect::<Vec<_>>();
            prop_assert_eq!(&states, &together.keys.0);
        }
    }

    #[test]
    fn every_limit_holds_when_several_are_asked_at_once(
        limits in any_limits(), steps in any_steps(), start in any_start(),
    ) {
        let mut gate = Gate::new(limits);
        let mut admitted = Vec::new();
        let mut now = start;
        for step in steps {
            now = step.apply(Clock::Forward, now, 150);
            let decision = gate.spend(step.cost, now);
            if decision.allowed() {
                admitted.push(Admitted { at: now, cost: step.cost.into(), max: 0 });
            }
        }
        for limit in gate.limits.iter().filter(|limit| !limit.shadow) {
            let under = |event: &Admitted| Admitted { max: limit.max, ..*event };
            let admitted: Vec<Admitted> = admitted.iter().map(under).collect();
            let per = per_of(&limit.rule);
            match limit.rule {
                Rule::Fixed(_) => assert_aligned_windows_within_max(&admitted, per),
                Rule::Sliding { .. } => assert_any_interval_within_max(&admitted, per),
                Rule::Bucket { burst, .. } => {
                    assert_rate_within_burst(&admitted, per, burst.unwrap_or(limit.max));
                }
            }
        }
    }

    #[test]
    fn shadow_limits_count_everything_and_refuse_nothing(
        limits in any_limits(), steps in any_steps(), start in any_start(),
    ) {
        let mut limits = limits;
        limits.iter_mut().for_each(|limit| limit.shadow = true);
        let mut gate = Gate::new(limits);
        let mut spent: Vec<(i64, u64)> = Vec::new();
        let mut now = start;
        for step in steps {
            now = step.apply(Clock::Forward, now, 150);
            let decision = gate.spend(step.cost, now);
            prop_assert!(decision.allowed());
            let since = |instant: i64| -> u64 {
                spent.iter().filter(|(at, _)| *at >= instant).map(|(_, cost)| cost).sum()
            };
            for (limit, report) in gate.limits.iter().zip(&decision.limits) {
                prop_assert!(!report.refuses());
                let before = match &limit.rule {
                    Rule::Fixed(_) => {
                        let per = per_of(&limit.rule);
                        since(now.div_euclid(per) * per)
                    }
                    Rule::Sliding { per, resolution } => {
                        let resolution = resolution.as_micros();
                        let oldest = now - per.as_micros() - resolution + 2;
                        since(-(-oldest).div_euclid(resolution) * resolution)
                    }
                    Rule::Bucket { .. } => continue,
                };
                let cost = u64::from(step.cost);
                prop_assert_eq!(report.standing.used, before + cost);
                let fits = before + cost <= limit.max;
                prop_assert_eq!(report.verdict == Verdict::Fits, fits);
                prop_assert_eq!(report.verdict == Verdict::Never, cost > limit.max);
            }
            spent.push((now, step.cost.into()));
        }
    }

    #[test]
    fn a_shadow_limit_says_what_it_would_have_said(
        rule in any_rule(), max in any_max(), steps in any_steps(), start in any_start(),
        clock in any_clock(),
    ) {
        let per = per_of(&rule);
        let mut gate = Gate::new(vec![Limited { rule, max, shadow: true }]);
        let mut now = start;
        for step in steps {
            now = step.apply(clock, now, per);
            let mut strict = gate.clone();
            strict.limits[0].shadow = false;
            let said = strict.peek(step.cost, now).limits[0].verdict;
            let decision = gate.spend(step.cost, now);
            prop_assert!(decision.allowed());
            prop_assert_eq!(decision.limits[0].verdict, said);
            prop_assert!(decision.limits[0].standing.used >= u64::from(step.cost));
        }
    }
}

fn limit(rule: Rule, max: u64) -> Limited {
    Limited { rule, max, shadow: false }
}

#[test]
fn a_request_refused_by_the_last_limit_spends_nothing_in_the_earlier_ones() {
    let mut gate = Gate::new(vec![
        limit(fixed(100), 10),
        limit(sliding(100, 1), 10),
        limit(bucket(100, None), 10),
        limit(fixed(50), 1),
    ]);
    assert!(gate.spend(1, 0).allowed());
    for _ in 0..20 {
        assert_eq!(gate.spend(1, 1).outcome, Outcome::Refused { retry_at: at(50) });
    }
    let used = gate.peek(1, 1).limits.iter().map(|limit| limit.standing.used).collect::<Vec<_>>();
    assert_eq!(used, [1, 1, 1, 1]);
}

#[test]
fn the_longest_wait_is_reported_wherever_it_stands() {
    for order in [[30, 70, 50], [70, 30, 50], [30, 50, 70]] {
        let mut gate = Gate::new(order.map(|per| limit(fixed(per), 1)).to_vec());
        assert!(gate.spend(1, 0).allowed());
        assert_eq!(gate.spend(1, 1).retry_at(), Some(at(70)));
    }
}

#[test]
fn what_never_fits_outweighs_any_wait() {
    for order in [[2, 1], [1, 2]] {
        let mut gate = Gate::new(order.map(|max| limit(fixed(100), max)).to_vec());
        assert!(gate.spend(1, 0).allowed());
        assert_eq!(gate.spend(2, 0).outcome, Outcome::NeverFits);
    }
}

#[test]
fn a_shadow_limit_may_go_above_its_max_and_does_not_lengthen_the_wait() {
    let shadow = Limited { rule: fixed(1000), max: 1, shadow: true };
    let mut gate = Gate::new(vec![shadow, limit(fixed(10), 3)]);
    assert!(gate.spend(3, 0).allowed());
    let refused = gate.spend(1, 1);
    assert_eq!(refused.retry_at(), Some(at(10)));
    assert_eq!(refused.limits[0].standing.used, 3);
    assert_eq!(refused.limits[0].standing.remaining(), 0);
    assert_eq!(refused.limits[0].verdict, Verdict::At(at(1000)));
}

#[test]
fn no_limits_at_all_allow_everything() {
    assert!(Gate::new(Vec::new()).spend(u32::MAX, 0).allowed());
}

#[test]
fn one_limit_that_has_seen_a_later_instant_sets_the_time_for_all() {
    let mut gate = Gate::new(vec![limit(sliding(100, 10), 5), limit(fixed(7), 5)]);
    assert!(gate.spend(1, 1009).allowed());
    let behind = gate.spend(1, 3);
    // The sliding window knows the instant itself, the fixed one only that [1008, 1015) has begun.
    assert_eq!(behind.decided_at, at(1009));
    assert_eq!(behind.limits[1].standing.resets_at, at(1015));
    assert_eq!(behind.limits[1].standing.used, 2);
}
