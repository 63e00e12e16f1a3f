//! Buckets with a burst of their own keep their units when the rate or the burst changes.
//!
//! The oracle counts in `per`ths of a unit, which are whole numbers at every rate: a microsecond
//! takes away `max` of them, by the larger `max` of the spends at its two ends.

mod support;

use proptest::prelude::*;
use support::*;
use tollgate_core::{
    Bucket, FineInstant, MAX_PER, Outcome, Reader, Refund, Rule, State, Verdict, Writer,
};

#[derive(Clone, Copy, Debug)]
struct Spent {
    at: i64,
    cost: u64,
    max: u64,
    holds: u64,
}

#[derive(Debug)]
struct Oracle {
    per: i128,
    spends: Vec<Spent>,
}

impl Oracle {
    fn after_all(&self) -> i128 {
        let mut owed = 0;
        for (position, spent) in self.spends.iter().enumerate() {
            if let Some(before) = position.checked_sub(1).map(|before| self.spends[before]) {
                owed = (owed - left(before, spent.at, spent.max)).max(0);
            }
            owed += i128::from(spent.cost) * self.per;
        }
        owed
    }

    fn owed(&self, now: i64, max: u64) -> i128 {
        self.spends.last().map_or(0, |last| (self.after_all() - left(*last, now, max)).max(0))
    }

    /// When so many units fit, or it would have been.
    fn fits_at(&self, cost: u64, max: u64, holds: u64) -> i64 {
        let last = self.spends.last().expect("what is refused is refused because of something");
        let too_many = self.after_all() + (i128::from(cost) - i128::from(holds)) * self.per;
        let rate = i128::from(last.max.max(max));
        last.at + i64::try_from(-(-too_many).div_euclid(rate)).expect("a few windows")
    }
}

fn left(before: Spent, now: i64, max: u64) -> i128 {
    i128::from(now - before.at) * i128::from(before.max.max(max))
}

/// A gate whose one limit changes, with the oracle beside it.
struct Pair {
    gate: Gate,
    oracle: Oracle,
    receipts: Vec<Option<Told>>,
    /// Refunds may give back less than was spent; then the oracle only bounds from one side.
    is_exact: bool,
}

impl Pair {
    fn new(per: i64, burst: u64, max: u64) -> Self {
        let gate = Gate::of(bucket(per, Some(burst)), max);
        let oracle = Oracle { per: per.into(), spends: Vec::new() };
        Self { gate, oracle, receipts: Vec::new(), is_exact: true }
    }

    fn change(&mut self, step: Step) {
        let Rule::Bucket { burst, .. } = &mut self.gate.limits[0].rule else { unreachable!() };
        if step.pick % 5 == 4 {
            *burst = Some(1 + step.pick as u64 / 5 % 20);
        }
        if let Some(max) = step.max {
            self.gate.limits[0].max = max;
        }
    }

    fn spend(&mut self, cost: u32, now: i64) {
        let (max, holds) = self.terms();
        let peeked = self.gate.peek(cost, now);
        let told = self.gate.spend(cost, now);
        let at = told.decided_at.as_micros();
        let owed = self.oracle.owed(at, max);
        let per = self.oracle.per;
        let units = u64::try_from((owed + per - 1) / per).expect("a few units");
        let used = peeked.limits[0].standing.used;
        assert!(used >= units, "{used} used of {units}: {:?}", self.oracle);
        assert!(!self.is_exact || used <= units + 1, "{used} used of {units}: {:?}", self.oracle);
        let cost = u64::from(cost);
        match told.outcome {
            Outcome::Allowed => {
                let room = (i128::from(holds) - i128::from(cost)) * per;
                assert!(owed <= room, "one too many at {at}: {:?}", self.oracle);
                self.oracle.spends.push(Spent { at, cost, max, holds });
                self.receipts.push(Some(told));
            }
            Outcome::NeverFits => assert!(cost > holds),
            Outcome::Refused { retry_at } => {
                let (exact, retry_at) =
                    (self.oracle.fits_at(cost, max, holds), retry_at.as_micros());
                assert!(retry_at >= exact, "too early: {retry_at} for {exact}, {:?}", self.oracle);
                assert!(!self.is_exact || retry_at <= exact + 1, "{retry_at}, exact {exact}");
                assert!(!self.gate.peek(cost as u32, retry_at - 1).allowed());
                assert!(self.gate.peek(cost as u32, retry_at).allowed());
            }
        }
    }

    fn refund(&mut self, pick: usize, now: i64) {
        let open: Vec<usize> =
            (0..self.receipts.len()).filter(|number| self.receipts[*number].is_some()).collect();
        if open.is_empty() {
            return;
        }
        let number = open[pick % open.len()];
        let receipt = self.receipts[number].take().expect("it is open");
        self.gate.refund(&receipt, now);
        self.oracle.spends[number].cost = 0;
        self.is_exact = false;
    }

    fn terms(&self) -> (u64, u64) {
        let limit = &self.gate.limits[0];
        (limit.max, limit.rule.quota(limit.max).max)
    }

    /// As a store does it that writes what it keeps.
    fn write_and_read(&mut self) {
        if let Some(state) = &mut self.gate.keys.0[0] {
            *state = through_bytes(state);
        }
    }

    fn assert_bursts(&self) {
        for spent in &self.oracle.spends {
            let together = self.oracle.spends.iter().filter(|other| other.at == spent.at);
            let (sum, holds) =
                together.fold((0, 0), |(sum, holds), one| (sum + one.cost, one.holds.max(holds)));
            assert!(sum <= holds, "{sum} of {holds} at {}: {:?}", spent.at, self.oracle);
        }
    }
}

fn through_bytes(state: &State) -> State {
    let mut bytes = Vec::new();
    Writer(&mut bytes).state(state);
    let mut reader = Reader(&bytes);
    let read = reader.state().expect("its own bytes");
    reader.end().expect("nothing is left");
    assert_eq!(read, *state);
    read
}

fn run(pair: &mut Pair, steps: &[Step], start: i64, clock: Clock, refunds: bool) {
    let per = per_of(&pair.gate.limits[0].rule);
    let (mut now, mut dropped_at) = (start, i64::MIN);
    for step in steps {
        now = step.apply(clock, now, per / 2).max(dropped_at);
        pair.change(*step);
        match step.pick % 8 {
            5 | 6 if refunds => pair.refund(step.pick / 8, now),
            7 if pair.gate.keys.0[0].is_some() => {
                pair.gate.forget_expired(now);
                if pair.gate.keys.0[0].is_none() {
                    dropped_at = now;
                }
            }
            _ => pair.spend(step.cost, now),
        }
        pair.write_and_read();
    }
    pair.assert_bursts();
}

fn changing_steps() -> impl Strategy<Value = Vec<Step>> {
    let max = prop_oneof![2 => Just(None), 1 => prop_oneof![0..=14u64, 1..=3000u64].prop_map(Some)];
    (any_steps(), prop::collection::vec(max, 60)).prop_map(|(mut steps, maxima)| {
        steps.iter_mut().zip(maxima).for_each(|(step, max)| step.max = max);
        steps
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn units_are_neither_minted_nor_destroyed_when_max_and_burst_change(
        per in any_per(), burst in 1..=20u64, max in any_max(), steps in changing_steps(),
        start in any_start(), clock in any_clock(),
    ) {
        run(&mut Pair::new(per, burst, max), &steps, start, clock, false);
    }

    #[test]
    fn refunds_mint_nothing_when_max_and_burst_change(
        per in any_per(), burst in 1..=20u64, max in any_max(), steps in changing_steps(),
        start in any_start(), clock in any_clock(),
    ) {
        run(&mut Pair::new(per, burst, max), &steps, start, clock, true);
    }

    #[test]
    fn refunds_in_order_give_back_every_unit_whatever_the_rates_were(
        per in any_per(), burst in 1..=20u64, now in any_start(),
        spends in prop::collection::vec((1..=6u32, 1..=100_000u64), 1..12), after in 1..=100_000u64,
    ) {
        let mut gate = Gate::of(bucket(per, Some(burst)), 1);
        let mut receipts = Vec::new();
        for (cost, max) in spends {
            gate.limits[0].max = max;
            receipts.extend(Some(gate.spend(cost, now)).filter(|told| told.allowed()));
        }
        gate.limits[0].max = after;
        let mut used: u64 = receipts.iter().map(|told| u64::from(told.cost.get())).sum();
        for receipt in &receipts {
            prop_assert_eq!(gate.peek(1, now).limits[0].standing.used, used);
            prop_assert_eq!(gate.refund(receipt, now), [Refund::Done]);
            used -= u64::from(receipt.cost.get());
        }
        prop_assert_eq!(gate.peek(1, now).limits[0].standing.used, 0);
    }

    #[test]
    fn a_burst_that_comes_or_goes_mints_nothing(
        per in any_per(), max in any_max(), steps in changing_steps(), start in any_start(),
    ) {
        let mut gate = Gate::of(bucket(per, None), max);
        let mut now = start;
        let mut together: Vec<(i64, u64, u64)> = Vec::new();
        for step in steps {
            now = step.apply(Clock::Forward, now, per / 2);
            if step.pick % 3 == 0 {
                gate.limits[0].rule = bucket(per, (step.pick % 2 == 0).then_some(max));
            }
            let told = gate.spend(step.cost, now);
            if told.allowed() {
                together.push((now, u64::from(step.cost), max));
            }
        }
        let admitted: Vec<_> =
            together.iter().map(|(at, cost, max)| Admitted { at: *at, cost: *cost, max: *max }).collect();
        assert_rate_within_burst(&admitted, per, max);
    }

    #[test]
    fn extreme_numbers_neither_panic_nor_pass_more_than_the_burst(
        per in prop_oneof![Just(1), Just(MAX_PER.as_micros()), Just(i64::MAX), 1..=i64::MAX],
        terms in prop::collection::vec((any_extreme(), any_extreme(), 1..=u32::MAX), 1..12),
        now in prop_oneof![Just(i64::MIN), Just(i64::MAX), any::<i64>()],
    ) {
        let mut gate = Gate::of(bucket(per, Some(1)), 1);
        let (mut sum, mut most) = (0u64, 0);
        for (max, burst, cost) in terms {
            gate.limits[0].max = max;
            gate.limits[0].rule = bucket(per, Some(burst));
            let told = gate.spend(cost, now);
            if told.allowed() {
                (sum, most) = (sum + u64::from(cost), most.max(burst));
                prop_assert!(sum <= most, "{sum} of {most}");
                prop_assert_eq!(told.limits[0].standing.used, sum);
                prop_assert_eq!(gate.clone().refund(&told, now), [Refund::Done]);
            }
            gate.clone().forget_expired(now);
        }
    }
}

fn any_extreme() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(u64::MAX), any::<u64>(), 1..1000u64, Just((1 << 53) - 1)]
}

const MINUTE: i64 = 60_000_000;

#[test]
fn a_lowered_rate_does_not_empty_a_full_bucket() {
    let mut gate = Gate::of(bucket(MINUTE, Some(10)), 100);
    assert!(gate.spend(10, 0).allowed());
    gate.limits[0].max = 1;
    let told = gate.spend(1, 0);
    // Ten in six seconds is what they were spent by; the first is back by that rate.
    assert_eq!(told.outcome, Outcome::Refused { retry_at: at(600_000) });
    assert_eq!(told.limits[0].standing.used, 10);
    assert!(gate.spend(1, 600_000).allowed());
    // From this spend on it is the lower one.
    assert_eq!(gate.spend(1, 600_000).outcome, Outcome::Refused { retry_at: at(600_000 + MINUTE) });
}

#[test]
fn a_raised_rate_is_felt_at_once_and_the_wait_it_tells_is_true() {
    let mut gate = Gate::of(bucket(MINUTE, Some(10)), 1);
    assert!(gate.spend(10, 0).allowed());
    gate.limits[0].max = 100;
    let told = gate.spend(1, 0);
    assert_eq!(told.outcome, Outcome::Refused { retry_at: at(600_000) });
    let standing = told.limits[0].standing;
    assert_eq!((standing.used, standing.resets_at), (10, at(6_000_000)));
    assert!(!gate.spend(1, 599_999).allowed());
    assert!(gate.spend(1, 600_000).allowed());
}

#[test]
fn a_changed_burst_keeps_what_is_owed() {
    let mut gate = Gate::of(bucket(MINUTE, Some(10)), 60);
    assert!(gate.spend(6, 0).allowed());
    gate.limits[0].rule = bucket(MINUTE, Some(4));
    assert_eq!(gate.spend(1, 0).limits[0].verdict, Verdict::At(at(3_000_000)));
    gate.limits[0].rule = bucket(MINUTE, Some(20));
    assert!(!gate.spend(15, 0).allowed());
    assert!(gate.spend(14, 0).allowed());
}

#[test]
fn a_thousand_changes_there_and_back_cost_nothing() {
    let mut gate = Gate::of(bucket(7_777_777, Some(5000)), 3);
    for round in 0..1000 {
        gate.limits[0].max = [3, 1000, 7][round % 3];
        assert!(gate.spend(4, 5).allowed());
    }
    assert_eq!(gate.peek(1, 5).limits[0].standing.used, 4000);
    assert!(gate.spend(1000, 5).allowed());
    assert!(!gate.spend(1, 5).allowed());
}

#[test]
fn a_receipt_of_the_old_rate_gives_back_its_units() {
    for (before, after) in [(100, 1), (1, 100)] {
        let mut gate = Gate::of(bucket(MINUTE, Some(10)), before);
        let first = gate.spend(4, 0);
        let second = gate.spend(3, 0);
        gate.limits[0].max = after;
        assert!(gate.spend(3, 0).allowed());
        assert_eq!(gate.refund(&first, 0), [Refund::Done]);
        assert!(!gate.clone().spend(5, 0).allowed());
        assert!(gate.spend(4, 0).allowed());
        assert_eq!(gate.refund(&second, 0), [Refund::Done]);
        assert!(!gate.clone().spend(4, 0).allowed());
        assert!(gate.spend(3, 0).allowed());
    }
}

#[test]
fn a_receipt_from_before_the_bucket_was_empty_gives_nothing_back() {
    let mut gate = Gate::of(bucket(MINUTE, Some(10)), 60);
    let old = gate.spend(10, 0);
    assert!(gate.spend(10, 10_000_000).allowed());
    assert_eq!(gate.refund(&old, 5_000_000), [Refund::Expired]);
    assert!(!gate.spend(1, 10_000_000).allowed());
}

#[test]
fn what_older_versions_wrote_counts_as_spent_by_the_present_max() {
    let mut gate = Gate::of(bucket(MINUTE, Some(10)), 60);
    let (tat, latest) = (FineInstant { micros: 10_000_000, fraction: 0 }, at(0));
    gate.keys.0[0] = Some(Bucket { tat, latest, refunded: 0 }.into());
    assert_eq!(gate.peek(1, 0).limits[0].standing.used, 10);
    let Outcome::Refused { retry_at } = gate.spend(1, 0).outcome else { panic!("it is full") };
    assert_eq!(retry_at, at(1_000_000));
    assert!(gate.spend(1, 1_000_000).allowed());
    gate.limits[0].max = 6;
    assert!(!gate.spend(1, 1_000_000).allowed());
    assert!(matches!(gate.keys.0[0], Some(State::UnitBucket(_))));
}

#[test]
fn a_burst_that_goes_leaves_the_units_owed_until_they_are_gone() {
    let mut gate = Gate::of(bucket(MINUTE, Some(10)), 60);
    assert!(gate.spend(10, 0).allowed());
    gate.limits[0].rule = bucket(MINUTE, None);
    assert_eq!(gate.peek(1, 0).limits[0].standing.used, 10);
    assert!(gate.spend(50, 0).allowed());
    assert!(!gate.spend(1, 0).allowed());
    assert!(gate.spend(1, MINUTE).allowed());
    assert!(matches!(gate.keys.0[0], Some(State::Bucket(_))));
}
