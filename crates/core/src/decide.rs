//! The decision over several limits: all of them, or none.

use smallvec::SmallVec;

use crate::decision::{Decision, LimitReport, Outcome, Standing, Verdict};
use crate::limit::{Cost, Quota, Rule};
use crate::state::{Spend, State};
use crate::time::Instant;
use crate::{bucket, fixed, sliding};

/// One limit of the request: its rule, and the quota of this subject.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub rule: &'a Rule,
    pub quota: Quota,
    pub shadow: bool,
}

/// The states of a request's keys, by the position of their claim. A store lends them under its
/// locks; the decision reads all of them before it changes any.
pub trait States {
    fn get(&self, position: usize) -> Option<&State>;
    /// The state to change, `fresh` if the key has none yet.
    fn get_or_insert(&mut self, position: usize, fresh: State) -> &mut State;
}

/// Whether a decision counts what it allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    Spend,
    /// Asks without spending: nothing is changed.
    Peek,
}

/// Decides `cost` against every claim. On `Allowed` with `Intent::Spend` every state has been
/// charged; in all other cases none was touched.
pub fn decide<'a>(
    claims: impl ExactSizeIterator<Item = Claim<'a>> + Clone,
    states: &mut impl States,
    intent: Intent,
    cost: Cost,
    now: Instant,
) -> Decision {
    let now = now.decidable();
    let now = claims
        .clone()
        .enumerate()
        .filter_map(|(position, claim)| Some(states.get(position)?.latest(claim.rule, now)))
        .fold(now, Instant::max);

    let mut limits: SmallVec<_> = claims
        .clone()
        .enumerate()
        .map(|(position, claim)| LimitReport {
            standing: stand(&claim, states.get(position), now, cost),
            spend: None,
            shadow: claim.shadow,
        })
        .collect();
    let outcome = outcome(&limits);

    if outcome == Outcome::Allowed && intent == Intent::Spend {
        for (position, claim) in claims.enumerate() {
            let state = states.get_or_insert(position, State::fresh(claim.rule, now));
            let (standing, spend) = charge(&claim, state, now, cost);
            let report: &mut LimitReport = &mut limits[position];
            // A shadow limit reports what it would have said, and counts all the same.
            report.standing = Standing { verdict: report.standing.verdict, ..standing };
            report.spend = Some(spend);
        }
    }
    Decision { outcome, cost, decided_at: now, limits }
}

/// The longest wait of the refusing limits; one that can never be met outweighs all.
fn outcome(limits: &[LimitReport]) -> Outcome {
    let mut outcome = Outcome::Allowed;
    for report in limits.iter().filter(|report| !report.shadow) {
        outcome = match (outcome, report.standing.verdict) {
            (Outcome::NeverFits, _) | (_, Verdict::Never) => Outcome::NeverFits,
            (Outcome::Refused { retry_at }, Verdict::At(at)) => {
                Outcome::Refused { retry_at: retry_at.max(at) }
            }
            (Outcome::Allowed, Verdict::At(retry_at)) => Outcome::Refused { retry_at },
            (outcome, Verdict::Fits) => outcome,
        };
    }
    outcome
}

fn stand(claim: &Claim<'_>, state: Option<&State>, now: Instant, cost: Cost) -> Standing {
    let quota = claim.quota;
    match (claim.rule, state) {
        (Rule::Fixed(window), None) => fixed::stand(None, window, quota, now, cost),
        (Rule::Fixed(window), Some(State::Fixed(state))) => {
            fixed::stand(Some(state), window, quota, now, cost)
        }
        (Rule::Sliding { .. }, None) => sliding::stand(None, quota, now, cost),
        (Rule::Sliding { .. }, Some(State::Sliding(state))) => {
            sliding::stand(Some(state), quota, now, cost)
        }
        (Rule::Bucket { .. }, None) => bucket::stand(None, quota, now, cost),
        (Rule::Bucket { .. }, Some(State::Bucket(state))) => {
            bucket::stand(Some(state), quota, now, cost)
        }
        (_, Some(_)) => panic!("{FOREIGN_STATE}"),
    }
}

fn charge(claim: &Claim<'_>, state: &mut State, now: Instant, cost: Cost) -> (Standing, Spend) {
    let quota = claim.quota;
    match (claim.rule, state) {
        (Rule::Fixed(window), State::Fixed(state)) => fixed::spend(state, window, quota, now, cost),
        (Rule::Sliding { resolution, .. }, State::Sliding(state)) => {
            sliding::spend(state, *resolution, quota, now, cost)
        }
        (Rule::Bucket { .. }, State::Bucket(state)) => bucket::spend(state, quota, now, cost),
        _ => panic!("{FOREIGN_STATE}"),
    }
}

const FOREIGN_STATE: &str =
    "the state of another algorithm stands under this key: the algorithm is part of every key";
