//! Refunds of `fixed` and `sliding` equal never having spent.

mod support;

use proptest::prelude::*;
use support::*;
use tollgate_core::{FineInstant, Refund, Rule, Spend, State};

fn counting_rule() -> impl Strategy<Value = Rule> {
    prop_oneof![any_fixed(), any_sliding()]
}

/// Two timelines of one limit. In `with`, some spends happen and are refunded; in `without`, they
/// never do.
struct Timelines {
    with: Gate,
    without: Gate,
    open: Vec<Told>,
}

impl Timelines {
    fn spend_and_refund_later(&mut self, cost: u32, now: i64) {
        let decision = self.with.spend(cost, now);
        self.open.extend(decision.allowed().then_some(decision));
    }

    /// What is to be kept must be there in both: it is spent in `without` when `with` allows it.
    fn spend(&mut self, cost: u32, now: i64) {
        if self.with.spend(cost, now).allowed() {
            assert!(self.without.spend(cost, now).allowed(), "never spending left less room");
        }
    }

    fn refund(&mut self, pick: usize, now: i64) {
        if !self.open.is_empty() {
            let receipt = self.open.swap_remove(pick % self.open.len());
            let expires_at = receipt.spends[0].expires_at();
            let refunded = self.with.refund(&receipt, now);
            assert_eq!(refunded[0] == Refund::Done, at(now) < expires_at);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn spending_and_refunding_equals_never_having_spent(
        rule in counting_rule(), max in any_max(), steps in any_steps(), later in any_steps(),
        start in any_start(),
    ) {
        let per = per_of(&rule);
        let gate = Gate::of(rule, max);
        let mut lines = Timelines { with: gate.clone(), without: gate, open: Vec::new() };
        let mut now = start;
        for step in &steps {
            now = step.apply(Clock::Forward, now, per);
            let max = step.max.unwrap_or(lines.with.limits[0].max);
            lines.with.limits[0].max = max;
            lines.without.limits[0].max = max;
            match step.pick % 8 {
                0..=2 => lines.spend(step.cost, now),
                3..=5 => lines.spend_and_refund_later(step.cost, now),
                _ => lines.refund(step.pick / 8, now),
            }
        }
        while !lines.open.is_empty() {
            lines.refund(steps[0].pick, now);
        }
        for step in later {
            prop_assert_eq!(lines.with.peek(step.cost, now), lines.without.peek(step.cost, now));
            now = step.apply(Clock::Forward, now, per);
            prop_assert_eq!(lines.with.spend(step.cost, now), lines.without.spend(step.cost, now));
        }
    }

    #[test]
    fn what_was_not_refunded_stays_within_max(
        rule in counting_rule(), max in any_max(), steps in any_steps(), start in any_start(),
    ) {
        let per = per_of(&rule);
        let mut gate = Gate::of(rule.clone(), max);
        let mut kept: Vec<(Admitted, Told)> = Vec::new();
        let mut now = start;
        for step in steps {
            now = step.apply(Clock::Forward, now, per);
            if step.pick % 3 == 0 && !kept.is_empty() {
                let (event, receipt) = kept.swap_remove(step.pick / 3 % kept.len());
                if gate.refund(&receipt, now) == [Refund::Expired] {
                    kept.push((event, receipt));
                }
                continue;
            }
            let decision = gate.spend(step.cost, now);
            if decision.allowed() {
                kept.push((Admitted { at: now, cost: step.cost.into(), max }, decision));
            }
            let admitted: Vec<Admitted> = kept.iter().map(|(event, _)| *event).collect();
            match rule {
                Rule::Fixed(_) => assert_aligned_windows_within_max(&admitted, per),
                _ => assert_any_interval_within_max(&admitted, per),
            }
        }
    }

    #[test]
    fn a_receipt_expires_with_its_window_and_then_changes_nothing(
        rule in counting_rule(), max in any_max(), now in any_start(), late in 0..1000i64,
    ) {
        let mut gate = Gate::of(rule, max);
        let receipt = gate.spend(1, now);
        let spend = receipt.spends[0];
        let expires_at = spend.expires_at().as_micros();
        prop_assert_eq!(gate.clone().refund(&receipt, expires_at - 1), [Refund::Done]);
        prop_assert_eq!(gate.clone().refund(&receipt, expires_at), [Refund::Expired]);
        prop_assert_eq!(gate.clone().refund(&receipt, expires_at + late), [Refund::Expired]);
        // Also when a later window is already counting.
        let next = gate.spend(1, expires_at + late);
        prop_assert!(next.allowed());
        prop_assert_eq!(gate.refund(&receipt, expires_at + late), [Refund::Expired]);
        prop_assert_eq!(gate.refund(&next, expires_at + late), [Refund::Done]);
    }

    #[test]
    fn dropping_a_state_when_it_expires_changes_no_later_answer(
        rule in any_rule(), max in any_max(), steps in any_steps(), start in any_start(),
        clock in any_clock(),
    ) {
        let per = per_of(&rule);
        let mut keeping = Gate::of(rule, max);
        let mut dropping = keeping.clone();
        let mut open: Vec<Told> = Vec::new();
        let (mut now, mut dropped_at) = (start, i64::MIN);
        for step in steps {
            now = step.apply(clock, now, per).max(dropped_at);
            if step.pick % 2 == 0 {
                let known = dropping.keys.0[0].is_some();
                dropping.forget_expired(now);
                if known && dropping.keys.0[0].is_none() {
                    dropped_at = now;
                }
            }
            if step.pick % 5 == 0 && !open.is_empty() {
                let receipt = open.swap_remove(step.pick / 5 % open.len());
                prop_assert_eq!(keeping.refund(&receipt, now), dropping.refund(&receipt, now));
            }
            prop_assert_eq!(keeping.peek(step.cost, now), dropping.peek(step.cost, now));
            let decision = keeping.spend(step.cost, now);
            prop_assert_eq!(&decision, &dropping.spend(step.cost, now));
            open.extend(decision.allowed().then_some(decision));
        }
    }
}

#[test]
fn a_receipt_of_another_algorithm_gives_nothing_back() {
    let rules = [fixed(100), sliding(100, 1), bucket(100, None)];
    for (spent, mine) in rules.iter().enumerate() {
        let receipt = Gate::of(mine.clone(), 5).spend(2, 10);
        for (held, theirs) in rules.iter().enumerate() {
            let mut gate = Gate::of(theirs.clone(), 5);
            assert!(gate.spend(3, 10).allowed());
            let done = gate.refund(&receipt, 10) == [Refund::Done];
            assert_eq!(done, spent == held);
        }
    }
}

#[test]
fn a_refund_of_one_window_leaves_the_next_alone() {
    let mut gate = Gate::of(fixed(100), 5);
    let old = gate.spend(5, 99);
    assert!(gate.spend(4, 100).allowed());
    assert_eq!(gate.refund(&old, 100), [Refund::Expired]);
    // A clock that steps back into the old window does not open it again.
    assert_eq!(gate.refund(&old, 99), [Refund::Expired]);
    assert_eq!(gate.peek(1, 100).limits[0].standing.used, 4);
}

#[test]
fn a_refund_takes_units_from_the_bucket_they_were_counted_in() {
    let mut gate = Gate::of(sliding(100, 10), 4);
    let first = gate.spend(1, 3);
    let second = gate.spend(3, 42);
    assert_eq!(gate.refund(&second, 50), [Refund::Done]);
    let Some(State::Sliding(state)) = &gate.keys.0[0] else { panic!("a sliding state") };
    assert_eq!(state.buckets().map(|bucket| bucket.starts_at).collect::<Vec<_>>(), [at(0)]);
    // The unit of the first bucket leaves when that bucket's last microsecond is 100 µs old.
    assert_eq!(gate.peek(4, 50).retry_at(), Some(at(109)));
    assert_eq!(gate.refund(&first, 108), [Refund::Done]);
    assert!(gate.peek(4, 50).allowed());
}

#[test]
fn a_refund_does_not_make_sliding_forget_how_late_it_is() {
    let mut gate = Gate::of(sliding(10, 1), 5);
    assert!(gate.spend(5, 0).allowed());
    let late = gate.spend(1, 12);
    assert_eq!(gate.refund(&late, 12), [Refund::Done]);
    let again = gate.spend(5, 5);
    assert!(!again.allowed() || again.decided_at >= at(10), "10 of 5 in [0, 10): {again:?}");
}

#[test]
fn spends_know_when_they_expire() {
    let tat_after = FineInstant { micros: 7, fraction: 1 };
    assert_eq!(Spend::Fixed { ends_at: at(9) }.expires_at(), at(9));
    assert_eq!(Spend::Sliding { starts_at: at(1), leaves_at: at(9) }.expires_at(), at(9));
    let spend = Spend::Bucket { tat_after, spent: 1, refunded_before: 0 };
    assert_eq!(spend.expires_at(), at(8));
}
