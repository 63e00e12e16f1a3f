//! What the tests share: a store that is a vector, random limits and histories, and oracles that
//! count by brute force. The oracles know the promises and none of the core's algorithms.

#![allow(dead_code, reason = "every test binary uses its own part of this")]

use proptest::prelude::*;
use tollgate_core::{
    Claim, Cost, Decision, Instant, Intent, Refund, Rule, Span, Spend, State, States, Window,
    decide, decide_one, refund,
};

pub(crate) fn at(micros: i64) -> Instant {
    Instant::from_micros(micros)
}

pub(crate) fn micros(length: i64) -> Span {
    Span::from_micros(length).expect("at least one microsecond")
}

pub(crate) fn units(cost: u32) -> Cost {
    Cost::new(cost).expect("at least one unit")
}

pub(crate) fn sliding(per: i64, resolution: i64) -> Rule {
    Rule::Sliding { per: micros(per), resolution: micros(resolution) }
}

pub(crate) fn bucket(per: i64, burst: Option<u64>) -> Rule {
    Rule::Bucket { per: micros(per), burst }
}

pub(crate) fn fixed(per: i64) -> Rule {
    Rule::Fixed(Window::Span(micros(per)))
}

/// The states of one subject, one per limit.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Keys(pub(crate) Vec<Option<State>>);

impl States for Keys {
    fn get(&self, position: usize) -> Option<&State> {
        self.0[position].as_ref()
    }

    fn get_or_insert_with(&mut self, position: usize, fresh: impl FnOnce() -> State) -> &mut State {
        self.0[position].get_or_insert_with(fresh)
    }
}

/// A decision with what it spent, as a store hands it to whoever writes receipts.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Told {
    pub(crate) decision: Decision,
    /// One per limit if it was allowed and spent, else none.
    pub(crate) spends: Vec<Spend>,
}

impl std::ops::Deref for Told {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Limited {
    pub(crate) rule: Rule,
    pub(crate) max: u64,
    pub(crate) shadow: bool,
}

/// Limits and the states of one subject: a store for one caller.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) limits: Vec<Limited>,
    pub(crate) keys: Keys,
}

impl Gate {
    pub(crate) fn new(limits: Vec<Limited>) -> Self {
        let keys = Keys(vec![None; limits.len()]);
        Self { limits, keys }
    }

    pub(crate) fn of(rule: Rule, max: u64) -> Self {
        Self::new(vec![Limited { rule, max, shadow: false }])
    }

    fn ask(&mut self, intent: Intent, cost: u32, now: i64) -> Told {
        let quotas: Vec<_> = self.limits.iter().map(|limit| limit.rule.quota(limit.max)).collect();
        let claims: Vec<_> = self
            .limits
            .iter()
            .zip(&quotas)
            .map(|(limit, quota)| Claim { rule: &limit.rule, quota, shadow: limit.shadow })
            .collect();
        let cost = units(cost);
        let one = match (&*claims, &*self.keys.0) {
            ([claim], [Some(state)]) => Some((claim, state.clone())),
            _ => None,
        };
        let decision = decide(&claims, &mut self.keys, intent, cost, at(now));
        if let Some((claim, mut state)) = one {
            let mut same = Decision::blank();
            decide_one(&mut same, claim, &mut state, intent, cost, at(now));
            assert_eq!((&same, Some(&state)), (&decision, self.keys.0[0].as_ref()));
        }
        let spent = intent == Intent::Spend && decision.allowed();
        let states = self.keys.0.iter().flatten().zip(&quotas).filter(|_| spent);
        let spends = states.map(|(state, quota)| state.latest_spend(quota, cost)).collect();
        Told { decision, spends }
    }

    /// Whatever is not allowed must leave every key as it was; every test that spends checks it.
    pub(crate) fn spend(&mut self, cost: u32, now: i64) -> Told {
        let before = self.keys.clone();
        let decision = self.ask(Intent::Spend, cost, now);
        if decision.allowed() {
            assert_eq!(decision.spends.len(), self.limits.len());
        } else {
            assert_eq!(before, self.keys, "a refusal changed a key");
        }
        decision
    }

    pub(crate) fn peek(&self, cost: u32, now: i64) -> Told {
        let mut copy = self.clone();
        let decision = copy.ask(Intent::Peek, cost, now);
        assert_eq!(copy.keys, self.keys, "a peek changed a key");
        decision
    }

    /// As a store does it: a key that is gone has nothing to give back.
    pub(crate) fn refund(&mut self, receipt: &Told, now: i64) -> Vec<Refund> {
        assert!(!receipt.spends.is_empty(), "only an allowed spend has a receipt");
        let states = self.keys.0.iter_mut();
        states
            .zip(&receipt.spends)
            .map(|(state, spend)| {
                let Some(state) = state else { return Refund::Expired };
                let before = state.clone();
                let outcome = refund(state, spend, receipt.cost, at(now));
                assert!(outcome == Refund::Done || *state == before, "expired, yet changed");
                outcome
            })
            .collect()
    }

    pub(crate) fn forget_expired(&mut self, now: i64) {
        for state in &mut self.keys.0 {
            state.take_if(|state| state.expires_at() <= at(now));
        }
    }
}

/// Everything a later answer says, without the receipt.
pub(crate) fn answer(told: &Told) -> Decision {
    told.decision.clone()
}

/// One event of a random history. Its time is told in 32nds of a window, so that one strategy
/// fits windows of a microsecond and of a day.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    share: i64,
    jitter: i64,
    pub(crate) cost: u32,
    pub(crate) max: Option<u64>,
    /// Chooses what a test needs chosen.
    pub(crate) pick: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Clock {
    Forward,
    /// Steps back now and then, up to two windows.
    Stepping,
}

impl Step {
    pub(crate) fn apply(self, clock: Clock, now: i64, per: i64) -> i64 {
        let moved = per / 32 * self.share + per % 32 * self.share / 32 + self.jitter;
        now + if clock == Clock::Forward { moved.abs() } else { moved }
    }
}

pub(crate) fn any_clock() -> impl Strategy<Value = Clock> {
    prop_oneof![Just(Clock::Forward), Just(Clock::Stepping)]
}

pub(crate) fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let share = prop_oneof![4 => Just(0), 8 => 0..=6i64, 3 => 7..=40i64, 1 => 41..=100i64,
        3 => -6..=-1i64, 1 => -64..=-7i64];
    let jitter = prop_oneof![3 => Just(0i64), 2 => -1..=2i64];
    let cost = prop_oneof![5 => 1..=2u32, 3 => 1..=5u32, 1 => 1..=20u32];
    let max = prop_oneof![9 => Just(None), 1 => (0..=14u64).prop_map(Some)];
    let step =
        (share, jitter, cost, max, any::<u16>()).prop_map(|(share, jitter, cost, max, pick)| {
            Step { share, jitter, cost, max, pick: pick.into() }
        });
    prop::collection::vec(step, 1..60)
}

/// Where a history begins: around the epoch, long before it and long after.
pub(crate) fn any_start() -> impl Strategy<Value = i64> {
    prop_oneof![
        -500..=500i64,
        -2_000_000_000_000_000..=7_000_000_000_000_000i64,
        Just(1_790_000_000_000_000i64)
    ]
}

pub(crate) fn any_per() -> impl Strategy<Value = i64> {
    prop_oneof![
        1 => Just(1i64),
        3 => 2..=12i64,
        5 => 13..=700i64,
        2 => 1_000_000..=3_600_000_000i64,
        1 => Just(86_400_000_000i64),
    ]
}

pub(crate) fn any_max() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 1..=3u64, 5 => 1..=12u64, 2 => 13..=90u64]
}

pub(crate) fn any_fixed() -> impl Strategy<Value = Rule> {
    any_per().prop_map(fixed)
}

pub(crate) fn any_sliding() -> impl Strategy<Value = Rule> {
    prop_oneof![
        2 => default_sliding(),
        1 => any_per().prop_map(|per| sliding(per, 1)),
        3 => any_per().prop_flat_map(|per| (Just(per), 1..=per))
            .prop_map(|(per, resolution)| sliding(per, resolution)),
    ]
}

pub(crate) fn default_sliding() -> impl Strategy<Value = Rule> {
    any_per().prop_map(|per| Rule::Sliding {
        per: micros(per),
        resolution: Rule::default_resolution(micros(per)),
    })
}

pub(crate) fn any_bucket() -> impl Strategy<Value = Rule> {
    (any_per(), prop::option::of(1..=20u64)).prop_map(|(per, burst)| bucket(per, burst))
}

/// Kept as an instant. One with a burst of its own is kept in units: `own_burst.rs`.
pub(crate) fn default_bucket() -> impl Strategy<Value = Rule> {
    any_per().prop_map(|per| bucket(per, None))
}

pub(crate) fn any_rule() -> impl Strategy<Value = Rule> {
    prop_oneof![any_fixed(), any_sliding(), any_bucket()]
}

/// Several limits share one clock, so their windows are of one order of magnitude.
pub(crate) fn any_limits() -> impl Strategy<Value = Vec<Limited>> {
    let rule = (1..=300i64, 1..=300i64, prop::option::of(1..=20u64), 0..3u8).prop_map(
        |(per, resolution, burst, algorithm)| match algorithm {
            0 => fixed(per),
            1 => sliding(per, resolution.min(per)),
            _ => bucket(per, burst),
        },
    );
    let limit = (rule, any_max(), prop::bool::weighted(0.2))
        .prop_map(|(rule, max, shadow)| Limited { rule, max, shadow });
    prop::collection::vec(limit, 1..=5)
}

pub(crate) fn per_of(rule: &Rule) -> i64 {
    match rule {
        Rule::Fixed(Window::Span(per)) => per.as_micros(),
        Rule::Fixed(Window::Calendar(..)) => 86_400_000_000,
        Rule::Sliding { per, .. } | Rule::Bucket { per, .. } => per.as_micros(),
    }
}

/// Something that was admitted (and not refunded), under the maximum then in force.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) at: i64,
    pub(crate) cost: u64,
    pub(crate) max: u64,
}

/// No half-open interval of length `per` holds more than the largest maximum in force when
/// something in it was admitted. Every interval is tried that begins and ends with an event.
pub(crate) fn assert_any_interval_within_max(admitted: &[Admitted], per: i64) {
    let mut sorted = admitted.to_vec();
    sorted.sort_by_key(|event| event.at);
    for first in 0..sorted.len() {
        let (mut sum, mut max) = (0, 0);
        for event in sorted[first..].iter().take_while(|event| event.at - sorted[first].at < per) {
            sum += event.cost;
            max = max.max(event.max);
            assert!(sum <= max, "{sum} of {max} in {per} µs from {}: {sorted:?}", sorted[first].at);
        }
    }
}

/// No aligned window holds more than the largest maximum it was admitted under.
pub(crate) fn assert_aligned_windows_within_max(admitted: &[Admitted], per: i64) {
    for event in admitted {
        let window = event.at.div_euclid(per);
        let inside = admitted.iter().filter(|other| other.at.div_euclid(per) == window);
        let (sum, max) =
            inside.fold((0, 0), |(sum, max), other| (sum + other.cost, max.max(other.max)));
        assert!(sum <= max, "{sum} of {max} in window {window} of {per} µs: {admitted:?}");
    }
}

/// Over any closed interval no more than `burst + length · max / per`, in whole numbers:
/// `sum · per ≤ burst · per + length · max`.
pub(crate) fn assert_rate_within_burst(admitted: &[Admitted], per: i64, burst: u64) {
    let mut sorted = admitted.to_vec();
    sorted.sort_by_key(|event| event.at);
    for first in 0..sorted.len() {
        let mut sum = 0;
        for event in &sorted[first..] {
            sum += i128::from(event.cost);
            let length = i128::from(event.at) - i128::from(sorted[first].at);
            let room = i128::from(burst) * i128::from(per) + length * i128::from(event.max);
            assert!(
                sum * i128::from(per) <= room,
                "{sum} units in {length} µs at {} per {per} µs, burst {burst}: {sorted:?}",
                event.max
            );
        }
    }
}
