//! Refunds of `bucket` never leave a key better off than if the refunded had never been spent. With a
//! burst of its own: `own_burst.rs`.

mod support;

use proptest::prelude::*;
use support::*;
use tollgate_core::{Refund, Rule, Spend};

const FRACTION_BITS: u32 = 32;

/// One spend that was allowed: its receipt until it is refunded, and what it weighed.
struct Spent {
    event: Admitted,
    weight: i128,
    receipt: Option<Told>,
}

impl Spent {
    fn new(decision: Told, max: u64) -> Self {
        let Some(Spend::Bucket { spent, .. }) = decision.spends.first().copied() else {
            panic!("a bucket's receipt")
        };
        let at = decision.decided_at.as_micros();
        let event = Admitted { at, cost: decision.cost.get().into(), max };
        Self { event, weight: spent as i128, receipt: Some(decision) }
    }
}

/// When the bucket would be full had the refunded spends never happened, to 2⁻³² µs.
fn full_at_without_refunded(history: &[Spent]) -> i128 {
    history.iter().filter(|spent| spent.receipt.is_some()).fold(i128::MIN, |full_at, spent| {
        full_at.max(i128::from(spent.event.at) << FRACTION_BITS) + spent.weight
    })
}

fn full_at(gate: &Gate) -> i128 {
    gate.keys.0[0].as_ref().map_or(i128::MIN, |state| {
        let tat = state.as_bucket().expect("the state of a bucket").tat;
        (i128::from(tat.micros) << FRACTION_BITS) | i128::from(tat.fraction)
    })
}

/// Which clock refunds are asked by.
#[derive(Clone, Copy, PartialEq)]
enum RefundsAt {
    /// Whatever the clock shows.
    Now,
    /// Never before an instant the key was used at.
    LatestSeen,
}

fn assert_never_better_off(
    rule: Rule,
    max: u64,
    steps: &[Step],
    start: i64,
    (clock, refunds_at): (Clock, RefundsAt),
) {
    let Rule::Bucket { per, .. } = rule else { unreachable!() };
    let mut gate = Gate::of(rule, max);
    let mut history: Vec<Spent> = Vec::new();
    let (mut now, mut seen, mut dropped_at) = (start, start, i64::MIN);
    for step in steps {
        now = step.apply(clock, now, per.as_micros() / 2).max(dropped_at);
        seen = seen.max(now);
        match step.pick % 8 {
            0..=2 => {
                let decision = gate.spend(step.cost, now);
                history.extend(decision.allowed().then(|| Spent::new(decision, max)));
            }
            3 if gate.keys.0[0].is_some() => {
                gate.forget_expired(now);
                if gate.keys.0[0].is_none() {
                    dropped_at = now;
                }
            }
            _ => {
                let at = if refunds_at == RefundsAt::Now { now } else { seen };
                let mut open: Vec<&mut Spent> =
                    history.iter_mut().filter(|spent| spent.receipt.is_some()).collect();
                if !open.is_empty() {
                    let picked = step.pick / 8 % open.len();
                    let receipt = open[picked].receipt.take().expect("not refunded yet");
                    gate.refund(&receipt, at);
                }
                now = at;
            }
        }
        let floor = i128::from(now) << FRACTION_BITS;
        let without = full_at_without_refunded(&history).max(floor);
        assert!(full_at(&gate).max(floor) >= without, "better off at {now}: {:?}", gate.keys);
    }
    let kept = history.iter().filter(|spent| spent.receipt.is_some());
    let kept: Vec<Admitted> = kept.map(|spent| spent.event).collect();
    assert_rate_within_burst(&kept, per.as_micros(), max);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_key_is_never_better_off_than_if_the_refunded_had_never_been_spent(
        rule in default_bucket(), max in any_max(), steps in any_steps(), start in any_start(),
    ) {
        assert_never_better_off(rule, max, &steps, start, (Clock::Forward, RefundsAt::Now));
    }

    #[test]
    fn spends_by_a_clock_that_steps_back_do_not_make_refunds_worth_more(
        rule in default_bucket(), max in any_max(), steps in any_steps(), start in any_start(),
    ) {
        let clocks = (Clock::Stepping, RefundsAt::LatestSeen);
        assert_never_better_off(rule, max, &steps, start, clocks);
    }

    #[test]
    fn refunds_by_a_clock_that_steps_back_are_not_worth_more(
        rule in default_bucket(), max in any_max(), steps in any_steps(), start in any_start(),
    ) {
        assert_never_better_off(rule, max, &steps, start, (Clock::Stepping, RefundsAt::Now));
    }

    #[test]
    fn refunding_everything_at_once_and_in_order_leaves_the_full_burst(
        per in any_per(), burst in 1..=20u32, max in any_max(), now in any_start(),
        costs in prop::collection::vec(1..=6u32, 1..12),
    ) {
        let mut gate = Gate::of(bucket(per, Some(burst.into())), max);
        let receipts: Vec<Told> = costs.iter().map(|cost| gate.spend(*cost, now))
            .filter(|told| told.allowed()).collect();
        for receipt in &receipts {
            prop_assert_eq!(gate.refund(receipt, now), [Refund::Done]);
        }
        let standing = gate.peek(1, now).limits[0].standing;
        prop_assert_eq!((standing.used, standing.resets_at), (0, at(now)));
        prop_assert!(gate.spend(burst, now).allowed());
        prop_assert!(!gate.spend(1, now).allowed());
    }

    #[test]
    fn a_spend_refunded_before_the_next_is_as_if_it_had_not_been(
        per in any_per(), max in any_max(), now in any_start(),
        costs in prop::collection::vec(1..=6u32, 1..30),
    ) {
        let mut gate = Gate::of(bucket(per, None), max);
        for cost in costs {
            let decision = gate.spend(cost, now);
            prop_assert_eq!(decision.allowed(), u64::from(cost) <= max);
            if decision.allowed() {
                prop_assert_eq!(gate.refund(&decision, now), [Refund::Done]);
            }
        }
        prop_assert_eq!(gate.peek(1, now).limits[0].standing.used, 0);
    }

    #[test]
    fn a_receipt_of_a_bucket_expires_when_it_is_full_again(
        rule in any_bucket(), max in any_max(), now in any_start(), cost in 1..=20u32,
    ) {
        let holds = rule.quota(max).max as u32;
        let mut gate = Gate::of(rule, max);
        let receipt = gate.spend(1 + cost % holds, now);
        let expires_at = receipt.spends[0].expires_at();
        prop_assert_eq!(expires_at, receipt.limits[0].standing.resets_at);
        let expires_at = expires_at.as_micros();
        prop_assert_eq!(gate.clone().refund(&receipt, expires_at), [Refund::Expired]);
        prop_assert_eq!(gate.refund(&receipt, expires_at - 1), [Refund::Done]);
    }
}

#[test]
fn a_burst_of_10_does_not_let_20_through_after_a_late_refund() {
    let mut gate = Gate::of(bucket(10, None), 10);
    let receipt = gate.spend(10, 0);
    assert!(receipt.allowed());
    // Time has given all ten back; the refund has nothing left to give.
    assert_eq!(gate.refund(&receipt, 10), [Refund::Expired]);
    assert!(gate.spend(10, 10).allowed());
    assert_eq!(gate.refund(&receipt, 10), [Refund::Expired]);
    assert!(!gate.spend(1, 10).allowed());
}

#[test]
fn a_refund_gives_back_only_what_time_has_not() {
    let mut gate = Gate::of(bucket(10, None), 10);
    let receipt = gate.spend(10, 0);
    assert_eq!(gate.refund(&receipt, 7), [Refund::Done]);
    assert!(gate.spend(10, 7).allowed());
    assert!(!gate.spend(1, 7).allowed());
}

#[test]
fn a_refund_of_an_old_spend_does_not_pay_for_a_newer_one() {
    let mut gate = Gate::of(bucket(10, None), 10);
    let old = gate.spend(4, 0);
    assert!(gate.spend(10, 4).allowed());
    assert_eq!(gate.refund(&old, 4), [Refund::Expired]);
    assert!(!gate.spend(1, 4).allowed());
}

#[test]
fn a_refund_by_a_clock_that_stepped_back_gives_nothing_that_time_has_given() {
    let mut gate = Gate::of(bucket(10, None), 10);
    let old = gate.spend(10, 0);
    assert!(gate.spend(10, 10).allowed());
    gate.refund(&old, 5);
    assert!(!gate.spend(1, 10).allowed(), "11 of 10 at one instant: {:?}", gate.keys);
}

/// One sum of refunds is kept per key, not a list: it cannot tell a refund of a later spend from
/// one of an earlier spend, and takes the side of the limit.
#[test]
fn refunding_newest_first_gives_back_less_and_never_more() {
    let mut gate = Gate::of(bucket(10, None), 10);
    let first = gate.spend(5, 0);
    let second = gate.spend(5, 0);
    assert_eq!(gate.refund(&second, 0), [Refund::Done]);
    assert_eq!(gate.refund(&first, 0), [Refund::Expired]);
    assert!(gate.spend(5, 0).allowed());
    assert!(!gate.spend(1, 0).allowed());
}
