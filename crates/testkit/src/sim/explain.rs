//! Which requests, one after the other, leave behind what a transaction committed.

use std::collections::BTreeMap;

use tollgate::core::store::Receipt;
use tollgate::core::{Claim, Decision, Intent, Quota, Refund, Spend, State, States, Writer};
use tollgate::core::{decide, refund};
use tollgate::{Refunded, StoreErrorKind};

use super::history::{Answer, Basis, Commit, Key, Outcome, What};
use super::verdict::{Hypothesis, Judge, cost, decoded, instant, maker, spend_id};

/// Whatever is counted at all is counted this soon after it was asked.
const LATEST_MILLIS: u64 = 6000;
/// Ways tried to explain one commit.
const MOST_TRIES: usize = 5_000_000;
/// Explanations kept of one commit.
const MOST_FOUND: usize = 4_096;

/// What one request did.
#[derive(Clone, Debug)]
pub(super) struct Explained {
    pub(super) request: usize,
    /// Of the commit.
    pub(super) step: usize,
    pub(super) effect: Effect,
}

#[derive(Clone, Debug)]
pub(super) enum Effect {
    /// Spent at this instant; the maximum of each limit.
    Spent { at: i64, maxima: Vec<u64> },
    /// Of this request.
    GaveBack(usize),
}

type Explanation = Vec<Explained>;
type Counts = BTreeMap<Key, Option<State>>;
/// States, by what they are written as.
type Passed = BTreeMap<(Key, Vec<u8>), State>;

/// What may have happened in a transaction.
#[derive(Default)]
pub(super) struct Ways {
    /// One order of each set of requests.
    pub(super) explanations: Vec<Explanation>,
    /// What whoever was decided in between may have seen: the states on the way, in every order.
    pub(super) passed: Passed,
}

struct Search<'j, 'a> {
    judge: &'j Judge<'a>,
    step: usize,
    commit: &'a Commit,
    basis: &'a Basis,
    goal: Counts,
    candidates: Vec<usize>,
    ways: Ways,
    /// Whether it leads to the goal from there.
    leads: BTreeMap<(Vec<usize>, Vec<Vec<u8>>), bool>,
    tries: usize,
}

/// All ways to explain a commit under a hypothesis.
pub(super) fn explain<'a>(
    judge: &Judge<'a>,
    step: usize,
    commit: &'a Commit,
    hypothesis: &Hypothesis,
) -> Result<Ways, String> {
    let basis = commit.basis.as_ref().expect("only what was decided is explained");
    let mut counts = Counts::new();
    let mut goal = Counts::new();
    for change in &commit.counters {
        counts.insert(change.key.clone(), decoded(&change.before));
        goal.insert(change.key.clone(), decoded(&change.after));
    }
    let mut search = Search {
        judge,
        step,
        commit,
        basis,
        goal,
        candidates: candidates(judge, step, commit, hypothesis),
        ways: Ways::default(),
        leads: BTreeMap::new(),
        tries: 0,
    };
    search.from(&counts, &mut Vec::new());
    if search.tries > MOST_TRIES && search.ways.explanations.is_empty() {
        return Err("there are too many ways to explain what was committed".into());
    }
    Ok(search.ways)
}

/// Requests that may have been part of it: first those whose answers say so.
fn candidates(
    judge: &Judge<'_>,
    step: usize,
    commit: &Commit,
    hypothesis: &Hypothesis,
) -> Vec<usize> {
    let basis = commit.basis.as_ref().expect("only what was decided is explained");
    let requests = judge.played.history.requests.iter().enumerate();
    let steps = &judge.played.history.steps;
    let (mut certain, mut lost) = (Vec::new(), Vec::new());
    for (number, request) in requests {
        if Some(request.instance) != commit.instance
            || request.asked >= basis.begun
            || hypothesis.used.contains(&number)
            || matches!(request.what, What::Peek { .. })
            || steps[request.asked].at_millis + LATEST_MILLIS < steps[step].at_millis
        {
            continue;
        }
        let answer = request.answer.as_ref().filter(|answer| answer.at > step || is_error(answer));
        match answer.map(|answer| &answer.outcome) {
            Some(Outcome::Decided { decision, .. }) if decision.allowed() => certain.push(number),
            Some(Outcome::Refunded(Refunded::Done)) => certain.push(number),
            Some(Outcome::Failed(kind)) if *kind != StoreErrorKind::Contended => lost.push(number),
            None if request.answer.is_none() => lost.push(number),
            None | Some(_) => {}
        }
    }
    certain.extend(lost);
    certain
}

/// Whoever was told that it failed may be counted later.
fn is_error(answer: &Answer) -> bool {
    matches!(answer.outcome, Outcome::Failed(_))
}

/// Whether it is asked under an idempotency key.
fn is_once(what: &What) -> bool {
    matches!(what, What::Check { once: Some(_), .. } | What::Refund { once: Some(_), .. })
}

/// Whether a state can still become another by spending. Wrong only if something is given back.
fn is_within(state: Option<&State>, goal: Option<&State>) -> bool {
    match (state, goal) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(State::Fixed(state)), Some(State::Fixed(goal))) => {
            state.ends_at < goal.ends_at || state.count <= goal.count
        }
        (Some(State::Sliding(state)), Some(State::Sliding(goal))) => {
            // Nobody has to have dropped yet what counts no longer: a refund does not.
            let still = state
                .buckets()
                .filter(|bucket| bucket.starts_at.plus(state.lifetime) > goal.latest);
            state.latest < goal.latest
                || still.map(|bucket| bucket.count).sum::<u64>() <= goal.total()
        }
        (Some(State::UnitBucket(state)), Some(State::UnitBucket(goal))) => {
            state.latest < goal.latest || state.owed <= goal.owed
        }
        (Some(state), Some(goal)) => match (state.as_bucket(), goal.as_bucket()) {
            (Some(state), Some(goal)) => state.tat <= goal.tat,
            _ => true,
        },
    }
}

impl Search<'_, '_> {
    /// Whether it leads to the goal from here.
    fn from(&mut self, counts: &Counts, path: &mut Explanation) -> bool {
        self.tries += 1;
        if self.tries > MOST_TRIES || self.ways.explanations.len() >= MOST_FOUND {
            return false;
        }
        let here = fingerprint(counts, path);
        if let Some(leads) = self.leads.get(&here) {
            return *leads;
        }
        let mut leads = self.is_complete(counts, path);
        if leads {
            self.ways.explanations.push(path.clone());
        } else {
            leads = self.on_from(counts, path);
        }
        self.leads.insert(here, leads);
        leads
    }

    fn on_from(&mut self, counts: &Counts, path: &mut Explanation) -> bool {
        let mut leads = false;
        let mut tried: Vec<&What> = Vec::new();
        for number in self.candidates.clone() {
            if path.iter().any(|explained| explained.request == number) {
                continue;
            }
            let request = &self.judge.played.history.requests[number];
            let is_lost = !matches!(
                request.answer.as_ref().map(|answer| &answer.outcome),
                Some(Outcome::Decided { .. } | Outcome::Refunded(_))
            );
            // Of those that nobody can tell apart, one is enough. A record tells who made it.
            if is_lost && !is_once(&request.what) {
                if tried.contains(&&request.what) {
                    continue;
                }
                tried.push(&request.what);
            }
            if let What::Refund { of, .. } = request.what
                && path
                    .iter()
                    .any(|one| matches!(one.effect, Effect::GaveBack(given) if given == of))
            {
                continue;
            }
            let mut next = counts.clone();
            if let Some(effect) = self.apply(number, &mut next)
                && self.may_lead_there(&next)
            {
                path.push(Explained { request: number, step: self.step, effect });
                if self.from(&next, path) {
                    leads = true;
                    self.ways.passed.extend(next.into_iter().filter_map(|(key, state)| {
                        let state = state?;
                        Some(((key, written(Some(&state))), state))
                    }));
                }
                path.pop();
            }
        }
        leads
    }

    fn may_lead_there(&self, counts: &Counts) -> bool {
        let within = |(key, state): (&Key, &Option<State>)| {
            is_within(state.as_ref(), self.goal[key].as_ref())
        };
        !self.commit.refunds.is_empty() || counts.iter().all(within)
    }

    fn is_complete(&self, counts: &Counts, path: &Explanation) -> bool {
        let refunds = path.iter().filter(|one| matches!(one.effect, Effect::GaveBack(_))).count();
        let requests = &self.judge.played.history.requests;
        let once = path.iter().filter(|one| is_once(&requests[one.request].what));
        !path.is_empty()
            && refunds == self.commit.refunds.len()
            && once.count() == self.commit.records.len()
            && *counts == self.goal
    }

    /// Does one request to the counts. `None`: it cannot have been part of this.
    fn apply(&self, number: usize, counts: &mut Counts) -> Option<Effect> {
        match self.judge.played.history.requests[number].what {
            What::Check { policy, user, cost, once } => {
                self.is_recorded(number, once)?;
                self.spend(number, (policy, user), cost, counts)
            }
            What::Refund { of, once } => {
                self.is_recorded(number, once)?;
                self.give_back(self.judge.receipt(of)?, of, counts)
            }
            What::Peek { .. } => None,
        }
    }

    fn is_recorded(&self, number: usize, once: Option<u64>) -> Option<()> {
        let recorded = || self.commit.records.iter().any(|body| maker(body) == Some(number));
        (once.is_none() || recorded()).then_some(())
    }

    fn spend(
        &self,
        number: usize,
        (policy, user): (usize, usize),
        units: u32,
        counts: &mut Counts,
    ) -> Option<Effect> {
        let keys = &self.judge.played.keys[&(policy, user)];
        if !keys.iter().all(|key| self.goal.contains_key(key)) {
            return None;
        }
        let terms = self.judge.terms_of(self.basis.epoch)?;
        let limits = &self.judge.played.policies[policy].limits;
        let maxima: Vec<u64> =
            (0..limits.len()).map(|limit| terms.max(policy, limit, user)).collect();
        let quotas: Vec<Quota> =
            limits.iter().zip(&maxima).map(|(limit, max)| limit.quota(*max)).collect();
        let claims: Vec<Claim<'_>> = limits
            .iter()
            .zip(&quotas)
            .map(|(limit, quota)| Claim { rule: &limit.rule, quota, shadow: limit.shadow })
            .collect();
        let now = instant(self.basis.now.max(self.basis.swept_at));
        let mut touched = Touched { keys, counts };
        let decision = decide(&claims, &mut touched, Intent::Spend, cost(units), now);
        if !decision.allowed() {
            return None;
        }
        let spends: Vec<Spend> = (0..keys.len())
            .filter_map(|limit| {
                Some(touched.get(limit)?.latest_spend(&quotas[limit], decision.cost))
            })
            .collect();
        self.is_as_answered(number, &decision, &spends)?;
        let at = decision.decided_at.as_micros();
        Some(Effect::Spent { at, maxima })
    }

    /// Nobody who was answered was answered otherwise.
    fn is_as_answered(&self, number: usize, decision: &Decision, spends: &[Spend]) -> Option<()> {
        let answer = self.judge.played.history.requests[number].answer.as_ref();
        let Some(Outcome::Decided { decision: said, receipt, .. }) =
            answer.map(|answer| &answer.outcome)
        else {
            return Some(());
        };
        let receipt = receipt.as_ref()?;
        let same = **said == *decision && receipt.spends.iter().map(|(_, spend)| spend).eq(spends);
        same.then_some(())
    }

    fn give_back(&self, receipt: &Receipt, of: usize, counts: &mut Counts) -> Option<Effect> {
        let now = instant(self.basis.now.max(self.basis.swept_at));
        if !self.commit.refunds.contains(&spend_id(receipt)) || now >= receipt.expires_at() {
            return None;
        }
        let mut given = false;
        for (key, spend) in &receipt.spends {
            if let Some(Some(state)) = counts.get_mut(key) {
                given |= refund(state, spend, receipt.cost, now) == Refund::Done;
            }
        }
        given.then_some(Effect::GaveBack(of))
    }
}

fn fingerprint(counts: &Counts, path: &Explanation) -> (Vec<usize>, Vec<Vec<u8>>) {
    let mut requests: Vec<usize> = path.iter().map(|explained| explained.request).collect();
    requests.sort_unstable();
    (requests, counts.values().map(|state| written(state.as_ref())).collect())
}

fn written(state: Option<&State>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(state) = state {
        Writer(&mut bytes).state(state);
    }
    bytes
}

struct Touched<'s> {
    keys: &'s [Key],
    counts: &'s mut Counts,
}

impl States for Touched<'_> {
    fn get(&self, position: usize) -> Option<&State> {
        self.counts.get(&self.keys[position])?.as_ref()
    }

    fn get_or_insert_with(&mut self, position: usize, fresh: impl FnOnce() -> State) -> &mut State {
        let count =
            self.counts.get_mut(&self.keys[position]).expect("only what changed is changed");
        count.get_or_insert_with(fresh)
    }
}
