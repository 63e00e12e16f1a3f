//! Each algorithm's bound, over random histories, counted by brute force.

mod support;

use proptest::prelude::*;
use support::*;
use tollgate_core::{Decision, Outcome, Rule, State};

/// Spends every step and calls `check` with what had been admitted before and the answer.
fn run(
    gate: &mut Gate,
    steps: &[Step],
    start: i64,
    clock: Clock,
    mut check: impl FnMut(&[Admitted], u64, Step, i64, &Decision),
) -> Vec<Admitted> {
    let per = per_of(&gate.limits[0].rule);
    let mut admitted: Vec<Admitted> = Vec::new();
    let mut now = start;
    for step in steps {
        now = step.apply(clock, now, per);
        gate.limits[0].max = step.max.unwrap_or(gate.limits[0].max);
        let max = gate.limits[0].max;
        let decision = gate.spend(step.cost, now);
        check(&admitted, max, *step, now, &decision);
        if decision.allowed() {
            let cost = u64::from(step.cost);
            admitted.push(Admitted { at: decision.decided_at.as_micros(), cost, max });
        }
    }
    admitted
}

/// What the answer of `fixed` and `sliding` must be when `used` units count before it.
fn assert_counted(used: u64, max: u64, step: Step, decision: &Decision) {
    let cost = u64::from(step.cost);
    let standing = decision.limits[0].standing;
    assert_eq!(decision.allowed(), used + cost <= max, "{used} + {cost} of {max}: {decision:?}");
    assert_eq!(decision.outcome == Outcome::NeverFits, cost > max);
    assert_eq!(standing.used, if decision.allowed() { used + cost } else { used });
    assert_eq!(standing.max, max);
}

/// Only a clock that is behind what the key has seen is corrected, and not to beyond that.
fn assert_honest_instant(admitted: &[Admitted], now: i64, decision: &Decision) {
    let seen = admitted.iter().map(|event| event.at).max().unwrap_or(i64::MIN);
    let decided_at = decision.decided_at.as_micros();
    assert!(decided_at >= now && decided_at <= now.max(seen), "{decided_at}, {now}, {seen}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn fixed_holds_max_in_each_aligned_window_whatever_the_clock_does(
        rule in any_fixed(), max in any_max(), steps in any_steps(), start in any_start(),
        clock in any_clock(),
    ) {
        let per = per_of(&rule);
        let admitted = run(&mut Gate::of(rule, max), &steps, start, clock,
            |admitted, max, step, now, decision| {
                let window = decision.decided_at.as_micros().div_euclid(per);
                let inside = admitted.iter().filter(|event| event.at.div_euclid(per) == window);
                assert_counted(inside.map(|event| event.cost).sum(), max, step, decision);
                assert_honest_instant(admitted, now, decision);
                let latest = admitted.iter().map(|event| event.at.div_euclid(per)).max();
                assert!(latest.is_none_or(|latest| window >= latest), "back into an old window");
                assert_eq!(decision.limits[0].standing.resets_at, at((window + 1) * per));
            });
        assert_aligned_windows_within_max(&admitted, per);
    }

    #[test]
    fn sliding_holds_max_in_any_interval_of_the_windows_length(
        rule in any_sliding(), max in any_max(), steps in any_steps(), start in any_start(),
    ) {
        let per = per_of(&rule);
        let admitted = run(&mut Gate::of(rule.clone(), max), &steps, start, Clock::Forward,
            |admitted, max, step, now, decision| {
                assert_counted(in_sliding_window(&rule, admitted, decision), max, step, decision);
                assert_honest_instant(admitted, now, decision);
            });
        assert_any_interval_within_max(&admitted, per);
    }

    #[test]
    fn sliding_to_the_microsecond_holds_max_whatever_the_clock_does(
        per in any_per(), max in any_max(), steps in any_steps(), start in any_start(),
    ) {
        let rule = sliding(per, 1);
        let admitted = run(&mut Gate::of(rule.clone(), max), &steps, start, Clock::Stepping,
            |admitted, max, step, now, decision| {
                assert_counted(in_sliding_window(&rule, admitted, decision), max, step, decision);
                assert_honest_instant(admitted, now, decision);
            });
        assert_any_interval_within_max(&admitted, per);
    }

    #[test]
    fn sliding_in_buckets_holds_max_whatever_the_clock_does(
        rule in any_sliding(), max in any_max(), steps in any_steps(), start in any_start(),
    ) {
        let per = per_of(&rule);
        let admitted =
            run(&mut Gate::of(rule, max), &steps, start, Clock::Stepping, |_, _, _, _, _| ());
        assert_any_interval_within_max(&admitted, per);
    }

    #[test]
    fn sliding_never_decides_before_its_last_bucket(
        rule in any_sliding(), max in any_max(), steps in any_steps(), start in any_start(),
    ) {
        let Rule::Sliding { resolution, .. } = rule else { unreachable!() };
        run(&mut Gate::of(rule, max), &steps, start, Clock::Stepping,
            |admitted, _, _, now, decision| {
                assert_honest_instant(admitted, now, decision);
                let latest = admitted.iter().map(|event| at(event.at).floor_to(resolution)).max();
                assert!(latest.is_none_or(|latest| decision.decided_at >= latest));
            });
    }

    #[test]
    fn sliding_keeps_no_more_buckets_than_max_or_61(
        rule in default_sliding(), max in any_max(), steps in any_steps(), start in any_start(),
        clock in any_clock(),
    ) {
        let per = per_of(&rule);
        let mut gate = Gate::of(rule, max);
        let mut now = start;
        for step in steps {
            now = step.apply(clock, now, per);
            gate.spend(step.cost, now);
            if let Some(State::Sliding(state)) = &gate.keys.0[0] {
                assert!(state.bucket_count() as u64 <= max.min(61));
                assert!(state.buckets().all(|bucket| bucket.count > 0));
            }
        }
    }

    #[test]
    fn bucket_holds_burst_and_rate_whatever_the_clock_does(
        rule in any_bucket(), max in any_max(), steps in any_steps(), start in any_start(),
        clock in any_clock(),
    ) {
        let Rule::Bucket { per, burst } = rule else { unreachable!() };
        let per = per.as_micros();
        let mut steps = steps;
        steps.iter_mut().for_each(|step| step.max = None);
        let burst = burst.unwrap_or(max);
        let admitted = run(&mut Gate::of(rule, max), &steps, start, clock,
            |admitted, max, step, now, decision| {
                assert!(decision.decided_at >= at(now));
                assert_as_exact_bucket(admitted, per, max, burst, step, decision);
            });
        assert_rate_within_burst(&admitted, per, burst);
    }

    #[test]
    fn bucket_holds_a_rate_of_many_units_a_microsecond(
        per in 1..=5i64, max in 1_000_000..=u64::from(u32::MAX), start in any_start(),
        waits in prop::collection::vec(0..=3i64, 1..40), share in 1..=8u32,
    ) {
        let mut gate = Gate::of(bucket(per, None), max);
        let mut admitted = Vec::new();
        let mut now = start;
        for wait in waits {
            now += wait;
            // Takes all there is, so that a rate a little too high shows.
            while let remaining @ 1.. = gate.peek(1, now).limits[0].standing.remaining() {
                let cost = (remaining as u32).min(max as u32 / share);
                prop_assert!(gate.spend(cost, now).allowed());
                admitted.push(Admitted { at: now, cost: cost.into(), max });
            }
        }
        assert_rate_within_burst(&admitted, per, max);
    }

    #[test]
    fn bucket_never_holds_more_time_than_its_burst_when_max_changes(
        rule in default_bucket(), max in any_max(), steps in any_steps(), start in any_start(),
        clock in any_clock(),
    ) {
        let Rule::Bucket { per, .. } = rule else { unreachable!() };
        let admitted = run(&mut Gate::of(rule, max), &steps, start, clock, |_, _, _, _, _| ());
        // A unit weighs `per / max` of the max it was admitted under. Here weights are rounded down
        // and the room up, to 2⁻³² µs: with two maxima there is no common whole unit.
        let per = (per.as_micros() as u128) << 32;
        for (last, event) in admitted.iter().enumerate() {
            let room = per.div_ceil(event.max.into()) * u128::from(event.max);
            let mut weight = 0;
            for first in admitted[..=last].iter().rev() {
                weight += (per * u128::from(first.cost) / u128::from(first.max)) as i128;
                let length = i128::from(event.at - first.at) << 32;
                prop_assert!(weight <= length + room as i128, "{:?}", admitted);
            }
        }
    }
}

/// A unit counts until the last microsecond of its bucket is a whole window old.
fn in_sliding_window(rule: &Rule, admitted: &[Admitted], decision: &Decision) -> u64 {
    let Rule::Sliding { per, resolution } = rule else { unreachable!() };
    let (per, resolution) = (per.as_micros(), resolution.as_micros());
    let now = decision.decided_at.as_micros();
    let counts = |event: &&Admitted| {
        let last_of_bucket = event.at.div_euclid(resolution) * resolution + resolution - 1;
        now - last_of_bucket < per
    };
    admitted.iter().filter(counts).map(|event| event.cost).sum()
}

/// The bucket in fractions of `1/max` µs, which are exact. The core's finer steps may cost the
/// caller less than a microsecond, and may never give one.
fn assert_as_exact_bucket(
    admitted: &[Admitted],
    per: i64,
    max: u64,
    burst: u64,
    step: Step,
    decision: &Decision,
) {
    let (per, max) = (i128::from(per), i128::from(max));
    let full_at = admitted.iter().fold(i128::MIN, |full_at, event| {
        full_at.max(i128::from(event.at) * max) + i128::from(event.cost) * per
    });
    let now = i128::from(decision.decided_at.as_micros()) * max;
    let room_at = full_at.max(now) + (i128::from(step.cost) - i128::from(burst)) * per;
    match decision.outcome {
        Outcome::Allowed => assert!(room_at <= now, "one too many: {decision:?}"),
        Outcome::NeverFits => assert!(u64::from(step.cost) > burst),
        Outcome::Refused { retry_at } => {
            let exact = -(-room_at).div_euclid(max);
            let retry_at = i128::from(retry_at.as_micros());
            assert!(retry_at == exact || retry_at == exact + 1, "{retry_at}, exact {exact}");
        }
    }
}

#[test]
fn sliding_does_not_forget_what_it_dropped_when_the_clock_steps_back_inside_a_bucket() {
    let mut gate = Gate::of(sliding(10, 5), 5);
    assert!(gate.spend(5, 4).allowed());
    assert!(gate.spend(1, 14).allowed());
    let again = gate.spend(4, 10);
    assert!(!again.allowed() || again.decided_at >= at(14), "9 of 5 in [4, 14): {again:?}");
}
