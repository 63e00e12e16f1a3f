//! The decision over several limits: all of them, or none.

use crate::bucket::Bucket;
use crate::decision::{Decision, LimitReport, Outcome, Standing, Verdict};
use crate::fixed::Fixed;
use crate::limit::{Cost, Quota, Rule};
use crate::sliding::Sliding;
use crate::state::State;
use crate::time::Instant;
use crate::unit_bucket::UnitBucket;
use crate::{bucket, fixed, sliding, unit_bucket};

/// One limit of the request: its rule, and the quota of this subject.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub rule: &'a Rule,
    pub quota: &'a Quota,
    pub shadow: bool,
}

impl<'a> AsRef<Claim<'a>> for Claim<'a> {
    fn as_ref(&self) -> &Claim<'a> {
        self
    }
}

/// The states of a request's keys, by the position of their claim. A store lends them under its
/// locks; the decision reads all of them before it changes any.
pub trait States {
    fn get(&self, position: usize) -> Option<&State>;
    /// The state to change, made by `fresh` if the key has none yet.
    fn get_or_insert_with(&mut self, position: usize, fresh: impl FnOnce() -> State) -> &mut State;
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
    claims: &[impl AsRef<Claim<'a>>],
    states: &mut impl States,
    intent: Intent,
    cost: Cost,
    now: Instant,
) -> Decision {
    let mut decision = Decision::blank();
    decide_into(&mut decision, claims, states, intent, cost, now);
    decision
}

/// The same, written where the caller wants it: moving a decision about costs more than making it.
#[inline]
pub fn decide_into<'a>(
    decision: &mut Decision,
    claims: &[impl AsRef<Claim<'a>>],
    states: &mut impl States,
    intent: Intent,
    cost: Cost,
    now: Instant,
) {
    let now = now.decidable();
    if intent == Intent::Spend && all_fit(claims, states, cost, now) {
        return charge_all(decision, claims, states, cost, now);
    }
    let latest = judge(decision, claims, states, cost, now);
    if latest > now {
        // A key has seen a later instant than the clock shows: it is that late, for all of them.
        judge_later(decision, claims, states, cost, latest);
    }
    let now = decision.decided_at;
    let spends = decision.outcome == Outcome::Allowed && intent == Intent::Spend;
    for (position, report) in decision.limits.iter_mut().enumerate() {
        let claim = claims[position].as_ref();
        report.standing = if spends {
            let fresh = || State::fresh(claim.rule, now);
            let state = states.get_or_insert_with(position, fresh);
            charge(claim, state, now, cost)
        } else {
            standing(claim, states.get(position), now)
        };
    }
}

/// A decision that nothing speaks against yet, in the place of the one before.
#[inline]
fn begin(decision: &mut Decision, cost: Cost, now: Instant) {
    decision.outcome = Outcome::Allowed;
    decision.cost = cost;
    decision.decided_at = now;
    decision.limits.clear();
}

/// What nearly every request finds: no limit refuses, and no key has seen a later instant.
#[inline]
fn all_fit<'a>(
    claims: &[impl AsRef<Claim<'a>>],
    states: &impl States,
    cost: Cost,
    now: Instant,
) -> bool {
    claims.iter().enumerate().all(|(position, claim)| {
        let (claim, state) = (claim.as_ref(), states.get(position));
        state.is_none_or(|state| state.latest(claim.rule, now) <= now)
            && verdict(claim, state, now, cost) == Verdict::Fits
    })
}

#[inline]
fn charge_all<'a>(
    decision: &mut Decision,
    claims: &[impl AsRef<Claim<'a>>],
    states: &mut impl States,
    cost: Cost,
    now: Instant,
) {
    let mut report = |(position, claim): (usize, &_)| {
        let claim: &Claim<'_> = AsRef::as_ref(claim);
        let state = states.get_or_insert_with(position, || State::fresh(claim.rule, now));
        let standing = charge(claim, state, now, cost);
        LimitReport { standing, verdict: Verdict::Fits, shadow: claim.shadow }
    };
    let claims = claims.iter().enumerate();
    // Over those of the decision before, if it had as many.
    if decision.limits.len() == claims.len() {
        (decision.outcome, decision.cost, decision.decided_at) = (Outcome::Allowed, cost, now);
        for (before, claim) in decision.limits.iter_mut().zip(claims) {
            *before = report(claim);
        }
    } else {
        begin(decision, cost, now);
        decision.limits.extend(claims.map(report));
    }
}

/// The same for one limit whose state is at hand: what most checks are.
#[inline]
pub fn decide_one(
    decision: &mut Decision,
    claim: &Claim<'_>,
    state: &mut State,
    intent: Intent,
    cost: Cost,
    now: Instant,
) {
    let now = now.decidable();
    if intent == Intent::Spend
        && let State::Bucket(bucket) = state
    {
        let now = now.max(bucket.latest());
        if let Some(standing) = bucket.try_spend(claim.quota, now, cost) {
            let report = LimitReport { standing, verdict: Verdict::Fits, shadow: claim.shadow };
            return write_one(decision, Outcome::Allowed, cost, now, report);
        }
    }
    let now = now.max(state.latest(claim.rule, now));
    let verdict = verdict(claim, Some(state), now, cost);
    let outcome = if claim.shadow { Outcome::Allowed } else { worse(Outcome::Allowed, verdict) };
    let spends = intent == Intent::Spend && outcome == Outcome::Allowed;
    let standing =
        if spends { charge(claim, state, now, cost) } else { standing(claim, Some(state), now) };
    let report = LimitReport { standing, verdict, shadow: claim.shadow };
    write_one(decision, outcome, cost, now, report);
}

#[inline]
fn write_one(
    decision: &mut Decision,
    outcome: Outcome,
    cost: Cost,
    now: Instant,
    report: LimitReport,
) {
    decision.outcome = outcome;
    decision.cost = cost;
    decision.decided_at = now;
    // Over the one before, if there was one.
    match &mut *decision.limits {
        [before] => *before = report,
        _ => {
            decision.limits.clear();
            decision.limits.push(report);
        }
    }
}

/// Writes what each limit says to `cost` at `now`, and returns the latest instant their states saw.
#[inline]
fn judge<'a>(
    decision: &mut Decision,
    claims: &[impl AsRef<Claim<'a>>],
    states: &impl States,
    cost: Cost,
    now: Instant,
) -> Instant {
    let mut latest = now;
    begin(decision, cost, now);
    for (position, claim) in claims.iter().enumerate() {
        let claim = claim.as_ref();
        let state = states.get(position);
        if let Some(state) = state {
            latest = latest.max(state.latest(claim.rule, now));
        }
        let verdict = verdict(claim, state, now, cost);
        if !claim.shadow {
            decision.outcome = worse(decision.outcome, verdict);
        }
        decision.limits.push(LimitReport { standing: NOT_YET, verdict, shadow: claim.shadow });
    }
    latest
}

#[cold]
fn judge_later<'a>(
    decision: &mut Decision,
    claims: &[impl AsRef<Claim<'a>>],
    states: &impl States,
    cost: Cost,
    now: Instant,
) {
    judge(decision, claims, states, cost, now);
}

/// Stands in a report until everything is decided.
const NOT_YET: Standing = Standing { max: 0, used: 0, resets_at: Instant::MIN };

/// The longest wait of the refusing limits; one that can never be met outweighs all.
#[inline]
fn worse(outcome: Outcome, verdict: Verdict) -> Outcome {
    match (outcome, verdict) {
        (Outcome::NeverFits, _) | (_, Verdict::Never) => Outcome::NeverFits,
        (Outcome::Refused { retry_at }, Verdict::At(at)) => {
            Outcome::Refused { retry_at: retry_at.max(at) }
        }
        (Outcome::Allowed, Verdict::At(retry_at)) => Outcome::Refused { retry_at },
        (outcome, Verdict::Fits) => outcome,
    }
}

#[inline(always)]
fn verdict(claim: &Claim<'_>, state: Option<&State>, now: Instant, cost: Cost) -> Verdict {
    let quota = claim.quota;
    match claim.rule {
        Rule::Fixed(window) => fixed::verdict(as_fixed(state), window, quota, now, cost),
        Rule::Sliding { .. } => sliding::verdict(as_sliding(state), quota, now, cost),
        Rule::Bucket { .. } => match in_units(claim, state, now) {
            None => bucket::verdict(as_bucket(state), quota, now, cost),
            Some(bucket) => unit_bucket::verdict(&bucket, quota, now, cost),
        },
    }
}

#[inline]
fn standing(claim: &Claim<'_>, state: Option<&State>, now: Instant) -> Standing {
    let quota = claim.quota;
    match claim.rule {
        Rule::Fixed(window) => fixed::standing(as_fixed(state), window, quota, now),
        Rule::Sliding { .. } => sliding::standing(as_sliding(state), quota, now),
        Rule::Bucket { .. } => match in_units(claim, state, now) {
            None => bucket::standing(as_bucket(state), quota, now),
            Some(bucket) => unit_bucket::standing(&bucket, quota, now),
        },
    }
}

/// Counts `cost`, and says how the limit stands then.
#[inline(always)]
fn charge(claim: &Claim<'_>, state: &mut State, now: Instant, cost: Cost) -> Standing {
    let quota = claim.quota;
    match (claim.rule, state) {
        (Rule::Fixed(window), State::Fixed(state)) => fixed::spend(state, window, quota, now, cost),
        (Rule::Sliding { resolution, .. }, State::Sliding(state)) => {
            sliding::spend(state, *resolution, quota, now, cost)
        }
        (Rule::Bucket { .. }, state) => {
            if let Some(bucket) = in_units(claim, Some(state), now) {
                return charge_units(claim, state, bucket, now, cost);
            }
            let mut bucket = state.as_bucket().expect(FOREIGN_STATE);
            let standing = bucket::spend(&mut bucket, quota, now, cost);
            state.put_bucket(bucket);
            standing
        }
        _ => panic!("{FOREIGN_STATE}"),
    }
}

#[inline(never)]
fn charge_units(
    claim: &Claim<'_>,
    state: &mut State,
    mut bucket: UnitBucket,
    now: Instant,
    cost: Cost,
) -> Standing {
    if !has_own_burst(claim.rule) && bucket.is_idle(claim.quota, now) {
        *state = State::fresh(claim.rule, now);
        return charge(claim, state, now, cost);
    }
    let standing = unit_bucket::spend(&mut bucket, claim.quota, now, cost);
    state.put_unit_bucket(bucket);
    standing
}

/// The bucket in units, if it is counted so: where the limit has a burst of its own, or had one and
/// something is still owed from then.
#[inline]
fn in_units(claim: &Claim<'_>, state: Option<&State>, now: Instant) -> Option<UnitBucket> {
    match (claim.rule, state) {
        (_, Some(State::UnitBucket(bucket))) => Some(**bucket),
        (Rule::Bucket { per, burst: Some(_) }, state) => Some(match as_bucket(state) {
            None => UnitBucket::fresh(*per, now),
            Some(bucket) => UnitBucket::of(&bucket, *per, claim.quota),
        }),
        _ => None,
    }
}

#[inline]
fn has_own_burst(rule: &Rule) -> bool {
    matches!(rule, Rule::Bucket { burst: Some(_), .. })
}

#[inline]
fn as_fixed(state: Option<&State>) -> Option<&Fixed> {
    state.map(|state| match state {
        State::Fixed(state) => state,
        _ => panic!("{FOREIGN_STATE}"),
    })
}

#[inline]
fn as_sliding(state: Option<&State>) -> Option<&Sliding> {
    state.map(|state| match state {
        State::Sliding(state) => &**state,
        _ => panic!("{FOREIGN_STATE}"),
    })
}

#[inline]
fn as_bucket(state: Option<&State>) -> Option<Bucket> {
    state.map(|state| state.as_bucket().expect(FOREIGN_STATE))
}

const FOREIGN_STATE: &str =
    "the state of another algorithm stands under this key: the algorithm is part of every key";
