//! What the answers must be: states in a map, and the core.

use std::collections::HashMap;

use serde_json::json;
use tollgate::Refunded;
use tollgate_core::{
    Claim, Cost, Decision, Instant, Intent, Refund, Spend, State, States, decide, refund,
};

use super::script::{Limited, Subject};

pub(super) struct Oracle {
    policies: Vec<Vec<Limited>>,
    states: HashMap<Key, State>,
    book: Vec<Entry>,
    /// No decision may be made before this instant: keys that were idle then may be gone.
    swept_at: Instant,
    /// The latest the clock ever showed.
    latest: Instant,
}

/// Policy, limit, and the values counted by.
type Key = (usize, usize, Vec<&'static str>);

/// An allowed decision: what its receipt stands for.
struct Entry {
    cost: Cost,
    spends: Vec<(Key, Spend)>,
    given_back: bool,
}

impl Oracle {
    pub(super) fn new(policies: Vec<Vec<Limited>>) -> Self {
        let (states, book) = (HashMap::new(), Vec::new());
        Self { policies, states, book, swept_at: Instant::MIN, latest: Instant::MIN }
    }

    pub(super) fn document(&self, policy: usize) -> serde_json::Value {
        let limits = self.policies[policy].iter().enumerate();
        let limits: Vec<_> =
            limits.map(|(position, limit)| limit.document(&format!("l{position}"))).collect();
        json!({ "limits": limits })
    }

    pub(super) fn set_max(&mut self, policy: usize, limit: usize, max: u64) {
        self.policies[policy][limit].max = max;
    }

    /// The store may have swept by itself at any instant the clock showed; then `now` is not
    /// before that. It is never before the clock, a sweep that was asked for, or beyond what the
    /// clock ever showed.
    pub(super) fn may_be_now(&mut self, now: Instant, clock: Instant) -> Result<(), String> {
        self.latest = self.latest.max(clock);
        let least = clock.max(self.swept_at);
        if least <= now && now <= self.latest {
            Ok(())
        } else {
            Err(format!("it is {now} by the store, not from {least} to {}", self.latest))
        }
    }

    pub(super) fn sweep(&mut self, now: Instant) {
        for state in self.states.extract_if(|_, state| state.expires_at() <= now) {
            self.swept_at = self.swept_at.max(state.1.expires_at());
        }
    }

    pub(super) fn peek(
        &mut self,
        policy: usize,
        subject: Subject,
        cost: u32,
        now: Instant,
    ) -> Decision {
        self.decide(policy, subject, cost, now, Intent::Peek).1
    }

    pub(super) fn check(
        &mut self,
        policy: usize,
        subject: Subject,
        cost: u32,
        now: Instant,
    ) -> Decision {
        let (keys, decision) = self.decide(policy, subject, cost, now, Intent::Spend);
        if decision.allowed() {
            let limits = &self.policies[policy];
            let spends = keys.into_iter().zip(limits).map(|(key, limit)| {
                let quota = limit.rule.quota(limit.max);
                let spend = self.states[&key].latest_spend(&quota, decision.cost);
                (key, spend)
            });
            let spends = spends.collect();
            self.book.push(Entry { cost: decision.cost, spends, given_back: false });
        }
        decision
    }

    fn decide(
        &mut self,
        policy: usize,
        subject: Subject,
        cost: u32,
        now: Instant,
        intent: Intent,
    ) -> (Vec<Key>, Decision) {
        let limits = &self.policies[policy];
        let keys: Vec<Key> = limits
            .iter()
            .enumerate()
            .map(|(position, limit)| {
                let values = limit.by.iter().map(|attribute| subject.value(attribute)).collect();
                (policy, position, values)
            })
            .collect();
        let quotas: Vec<_> = limits.iter().map(|limit| limit.rule.quota(limit.max)).collect();
        let claims = limits.iter().zip(&quotas);
        let claims: Vec<_> = claims
            .map(|(limit, quota)| Claim { rule: &limit.rule, quota, shadow: limit.shadow })
            .collect();
        let cost = Cost::new(cost).expect("a script asks for at least one");
        let mut touched = Touched { keys: &keys, states: &mut self.states };
        let decision = decide(&claims, &mut touched, intent, cost, now);
        (keys, decision)
    }

    pub(super) fn refund(&mut self, receipt: usize, now: Instant) -> Refunded {
        let entry = &mut self.book[receipt];
        let expires_at = entry.spends.iter().map(|(_, spend)| spend.expires_at()).max();
        if expires_at.is_none_or(|expires_at| expires_at <= now) {
            return Refunded::Expired;
        }
        if entry.given_back {
            return Refunded::Already;
        }
        for (key, spend) in &entry.spends {
            if let Some(state) = self.states.get_mut(key) {
                entry.given_back |= refund(state, spend, entry.cost, now) == Refund::Done;
            }
        }
        if entry.given_back { Refunded::Done } else { Refunded::Expired }
    }
}

/// The states of one request's keys.
struct Touched<'a> {
    keys: &'a [Key],
    states: &'a mut HashMap<Key, State>,
}

impl States for Touched<'_> {
    fn get(&self, position: usize) -> Option<&State> {
        self.states.get(&self.keys[position])
    }

    fn get_or_insert_with(&mut self, position: usize, fresh: impl FnOnce() -> State) -> &mut State {
        self.states.entry(self.keys[position].clone()).or_insert_with(fresh)
    }
}
