//! Was every answer right? Every commit must be the work of requests that were answered so, one after
//! the other, by the core; and every other answer must be what the core says of states that were there.
//!
//! What was lost on the way is not known, so several explanations can stand side by side until an
//! answer rules one out: see [`Hypothesis`]. The core itself is judged by [`super::bound`].

use std::collections::{BTreeMap, BTreeSet};

use tollgate::core::store::Receipt;
use tollgate::core::{Claim, Cost, Decision, Instant, Intent, Outcome as Decided, Reader, State};
use tollgate::core::{LimitReport, Spend, States, Verdict, decide};
use tollgate::{Refunded, StoreErrorKind};

use super::explain::{Explained, explain};
use super::history::{Answer, Change, Commit, Event, Key, Outcome, Request, Terms, What};
use super::play::Played;

/// More explanations than this do not stand side by side.
const MOST_HYPOTHESES: usize = 4_096;
/// A refusal is repeated from memory for so long.
const SHIELD_MILLIS: u64 = 1000;

/// Something that cannot be right, and at which step it shows.
#[derive(Clone, Debug)]
pub(super) struct Wrong {
    pub(super) step: usize,
    pub(super) what: String,
}

/// Who did what, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Hypothesis {
    pub(super) used: BTreeSet<usize>,
    pub(super) trail: Vec<Explained>,
}

pub(super) struct Judge<'a> {
    pub(super) played: &'a Played,
    /// What was in force from which step on.
    pub(super) terms: Vec<(usize, &'a Terms)>,
    /// Each key's states, from which step on.
    versions: BTreeMap<&'a Key, Vec<(usize, Option<State>)>>,
    hypotheses: Vec<Hypothesis>,
    refunded: BTreeSet<(i64, i64)>,
    recorded: BTreeSet<&'a [u8]>,
    /// Idempotency keys that have a record, by the request that made it.
    once: BTreeSet<String>,
    /// The latest that the database's clock has shown.
    latest_clock: i64,
}

/// Everything that was decided, in order, if all of it is right.
pub(super) fn judge(played: &Played) -> Result<Vec<Explained>, Wrong> {
    let mut judge = Judge {
        played,
        terms: Vec::new(),
        versions: BTreeMap::new(),
        hypotheses: vec![Hypothesis::default()],
        refunded: BTreeSet::new(),
        recorded: BTreeSet::new(),
        once: BTreeSet::new(),
        latest_clock: i64::MIN,
    };
    for (number, step) in played.history.steps.iter().enumerate() {
        judge.latest_clock = step.latest_clock;
        let judged = match &step.event {
            Event::Committed(commit) => judge.committed(number, commit),
            Event::Answered(request) => judge.answered(*request),
            Event::Asked(_) | Event::ClockSet | Event::Note(_) => Ok(()),
        };
        judged.map_err(|what| Wrong { step: number, what })?;
    }
    Ok(judge.hypotheses.swap_remove(0).trail)
}

impl<'a> Judge<'a> {
    fn committed(&mut self, step: usize, commit: &'a Commit) -> Result<(), String> {
        if let Some(terms) = &commit.terms {
            self.terms.push((step, terms));
        }
        for id in &commit.refunds {
            if !self.refunded.insert(*id) {
                return Err(format!("{id:?} is given back twice"));
            }
        }
        for body in &commit.records {
            self.recorded.insert(body);
            let maker = maker(body).ok_or("a record that nobody made")?;
            if !self.once.insert(self.once_key(maker)?) {
                return Err("an idempotency key has its effect twice".into());
            }
        }
        let changes_nothing = |change: &Change| decoded(&change.after) == decoded(&change.before);
        let made_rows = commit.counters.iter().all(|change| change.before.is_none());
        match &commit.basis {
            // A batch whose `begin` failed makes its rows and ends.
            Some(_) if made_rows && commit.counters.iter().all(changes_nothing) => {}
            Some(basis) => {
                if basis.held_from.is_some_and(|held_from| basis.now < held_from) {
                    return Err("the clock was read before all locks were held".into());
                }
                self.explained(step, commit)?;
            }
            None => {
                let wrong = commit.counters.iter().find_map(|change| self.unswept(change));
                wrong.map_or(Ok(()), Err)?;
            }
        }
        for change in &commit.counters {
            let state = decoded(&change.after);
            self.versions.entry(&change.key).or_default().push((step, state));
        }
        Ok(())
    }

    /// What is wrong with a change by somebody who decided nothing: a sweep takes away what counts no longer.
    fn unswept(&self, change: &Change) -> Option<String> {
        if decoded(&change.after).is_some() {
            return Some("somebody who decided nothing changed a count".into());
        }
        let expires_at = decoded(&change.before)?.expires_at().as_micros();
        let early = expires_at - self.latest_clock;
        (early > 0).then(|| format!("a count is taken away {early} µs before it has expired"))
    }

    fn explained(&mut self, step: usize, commit: &'a Commit) -> Result<(), String> {
        let (mut next, mut passed) = (Vec::new(), BTreeMap::new());
        for hypothesis in &self.hypotheses {
            let ways = explain(self, step, commit, hypothesis)?;
            passed.extend(ways.passed);
            for found in ways.explanations {
                let mut hypothesis = hypothesis.clone();
                hypothesis.used.extend(found.iter().map(|explained| explained.request));
                hypothesis.trail.extend(found);
                next.push(hypothesis);
            }
        }
        if next.is_empty() {
            return Err("nothing that was asked explains what was committed".into());
        }
        // Whoever did it, it matters who is left; not in which order.
        let mut seen = BTreeSet::new();
        next.retain(|hypothesis: &Hypothesis| seen.insert(hypothesis.used.clone()));
        next.truncate(MOST_HYPOTHESES);
        for ((key, _), state) in passed {
            if let Some(key) = self.played.key(&key) {
                self.versions.entry(key).or_default().push((step, Some(state)));
            }
        }
        self.hypotheses = next;
        Ok(())
    }

    fn answered(&mut self, number: usize) -> Result<(), String> {
        let request = &self.played.history.requests[number];
        let Some(Answer { outcome, .. }) = &request.answer else { return Ok(()) };
        match (&request.what, outcome) {
            (_, Outcome::Failed(StoreErrorKind::Corrupt)) => Err("a count cannot be read".into()),
            (_, Outcome::Failed(_)) => Ok(()),
            (_, Outcome::Replayed(body)) => {
                let maker = maker(body).ok_or("a replay of something that nobody made")?;
                let same = self.once_key(maker)? == self.once_key(number)?;
                if same && self.recorded.contains(&**body) {
                    Ok(())
                } else {
                    Err(format!("#{number} is answered by a record that is not its own"))
                }
            }
            (What::Check { .. }, Outcome::Decided { decision, .. }) if decision.allowed() => {
                self.must_be_explained(number)
            }
            (
                What::Check { policy, user, .. } | What::Peek { policy, user, .. },
                Outcome::Decided { decision, version, .. },
            ) => self.stands(request, (*policy, *user), decision, *version),
            (What::Refund { .. }, Outcome::Refunded(Refunded::Done)) => {
                self.must_be_explained(number)
            }
            (What::Refund { of, .. }, Outcome::Refunded(Refunded::Already)) => {
                let id = self.receipt(*of).map(spend_id);
                if id.is_some_and(|id| self.refunded.contains(&id)) {
                    Ok(())
                } else {
                    Err(format!("#{number} was never given back"))
                }
            }
            (What::Refund { of, .. }, Outcome::Refunded(Refunded::Expired)) => {
                let receipt = self.receipt(*of).ok_or("nothing was spent")?;
                match receipt.spends.iter().find(|(key, spend)| !self.is_gone(key, spend)) {
                    None => Ok(()),
                    Some(_) => Err(format!("#{number} has not expired")),
                }
            }
            (what, outcome) => Err(format!("{what:?} cannot be answered by {outcome:?}")),
        }
    }

    /// Whether there may be nothing left of a spend to give back.
    fn is_gone(&self, key: &Key, spend: &Spend) -> bool {
        let is_past = spend.expires_at().as_micros() <= self.latest_clock;
        // A bucket counts what was given back since against every older spend.
        let is_bucket = matches!(spend, Spend::Bucket { .. } | Spend::UnitBucket { .. });
        // One in units leaves sooner once its rate is raised.
        let may_be_sooner = matches!(spend, Spend::UnitBucket { .. }) && self.has_changed(key);
        is_past || may_be_sooner || is_bucket && self.is_given_back_from(key)
    }

    /// Whether a key had more than one `max` so far.
    fn has_changed(&self, key: &Key) -> bool {
        self.played.keys.iter().any(|((policy, user), keys)| {
            keys.iter().enumerate().filter(|(_, own)| *own == key).any(|(limit, _)| {
                let known = self.terms.iter().filter(|(_, terms)| terms.policies.len() > *policy);
                let mut maxima = known.map(|(_, terms)| terms.max(*policy, limit, *user));
                let first = maxima.next();
                maxima.any(|max| Some(max) != first)
            })
        })
    }

    fn is_given_back_from(&self, key: &Key) -> bool {
        let receipts = (0..self.played.history.requests.len()).filter_map(|of| self.receipt(of));
        let mut given = receipts.filter(|receipt| self.refunded.contains(&spend_id(receipt)));
        given.any(|receipt| receipt.spends.iter().any(|(own, _)| own == key))
    }

    fn must_be_explained(&mut self, number: usize) -> Result<(), String> {
        self.hypotheses.retain(|hypothesis| hypothesis.used.contains(&number));
        if self.hypotheses.is_empty() {
            return Err(format!("#{number} is answered, and was not committed like that"));
        }
        Ok(())
    }

    /// Whether a decision that counted nothing says of every limit what one of its states, of those
    /// there were while it was asked, makes the core say.
    fn stands(
        &self,
        request: &Request,
        (policy, user): (usize, usize),
        decision: &Decision,
        version: u64,
    ) -> Result<(), String> {
        let answered = request.answer.as_ref().map_or(usize::MAX, |answer| answer.at);
        let from = self.oldest_memory(request, decision);
        let keys = &self.played.keys[&(policy, user)];
        let says_so = |terms: &Terms| {
            terms.policies.get(policy).is_some_and(|(number, _)| *number == version)
                && keys.iter().zip(&decision.limits).enumerate().all(|(limit, (key, report))| {
                    let max = terms.max(policy, limit, user);
                    self.report_stands((policy, limit, max), key, report, decision, from..=answered)
                })
        };
        let mut in_force = between(&self.terms, from, answered);
        if !in_force.any(|(_, terms)| says_so(terms)) {
            return Err("it says what was never so".into());
        }
        if combined(&decision.limits) != decision.outcome {
            return Err("it says another thing than its limits".into());
        }
        Ok(())
    }

    fn report_stands(
        &self,
        (policy, limit, max): (usize, usize, u64),
        key: &Key,
        report: &LimitReport,
        decision: &Decision,
        steps: std::ops::RangeInclusive<usize>,
    ) -> bool {
        let limit = &self.played.policies[policy].limits[limit];
        let quota = limit.quota(max);
        let claim = Claim { rule: &limit.rule, quota: &quota, shadow: limit.shadow };
        let stands = |state: Option<&State>| {
            let mut one = One(state.cloned());
            let (cost, now) = (decision.cost, decision.decided_at);
            let said = decide(&[claim], &mut one, Intent::Peek, cost, now);
            said.decided_at == now && said.limits[0] == *report
        };
        match self.versions.get(key) {
            None => stands(None),
            Some(versions) => {
                let begins_later = versions[0].0 >= *steps.start();
                begins_later && stands(None)
                    || between(versions, *steps.start(), *steps.end())
                        .any(|(_, state)| stands(state.as_ref()))
            }
        }
    }

    /// The step whose state an answer may still be made from.
    fn oldest_memory(&self, request: &Request, decision: &Decision) -> usize {
        let is_check = matches!(request.what, What::Check { .. });
        let refused = matches!(decision.outcome, Decided::Refused { .. });
        if !(self.played.shield && is_check && refused) {
            return request.asked;
        }
        let steps = &self.played.history.steps;
        let oldest = steps[request.asked].at_millis.saturating_sub(SHIELD_MILLIS);
        steps.partition_point(|step| step.at_millis < oldest)
    }

    /// What stands for an idempotency key, whoever asks under it.
    fn once_key(&self, number: usize) -> Result<String, String> {
        match self.played.history.requests.get(number).map(|request| &request.what) {
            Some(What::Check { once: Some(once), .. }) => Ok(format!("c{once}")),
            Some(What::Refund { once: Some(once), .. }) => Ok(format!("r{once}")),
            _ => Err(format!("#{number} has no idempotency key")),
        }
    }

    /// The receipt that a request was given.
    pub(super) fn receipt(&self, number: usize) -> Option<&'a Receipt> {
        match &self.played.history.requests[number].answer.as_ref()?.outcome {
            Outcome::Decided { receipt, .. } => receipt.as_ref(),
            _ => None,
        }
    }

    /// What was in force in an epoch.
    pub(super) fn terms_of(&self, epoch: i64) -> Option<&'a Terms> {
        self.terms.iter().find(|(_, terms)| terms.epoch == epoch).map(|(_, terms)| *terms)
    }
}

impl Played {
    /// The same key, for as long as the game is kept.
    fn key(&self, key: &Key) -> Option<&Key> {
        self.keys.values().flatten().find(|own| *own == key)
    }
}

/// Those that were there at some time from one step to another.
fn between<T>(
    versions: &[(usize, T)],
    from: usize,
    to: usize,
) -> impl Iterator<Item = &(usize, T)> {
    let first = versions.partition_point(|(step, _)| *step <= from).saturating_sub(1);
    // Of several of one step, all.
    let first = versions[..=first.min(versions.len().saturating_sub(1))]
        .iter()
        .rposition(|(step, _)| *step < versions.get(first).map_or(0, |(step, _)| *step))
        .map_or(0, |before| before + 1);
    versions[first..].iter().take_while(move |(step, _)| *step <= to)
}

/// Whose record it is.
pub(super) fn maker(body: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(body).ok()?.strip_prefix('#')?;
    text.split(' ').next()?.parse().ok()
}

pub(super) fn spend_id(receipt: &Receipt) -> (i64, i64) {
    (receipt.id.run.cast_signed(), receipt.id.sequence.cast_signed())
}

pub(super) fn decoded(bytes: &Option<Vec<u8>>) -> Option<State> {
    let bytes = bytes.as_ref().filter(|bytes| !bytes.is_empty())?;
    Some(Reader(bytes).state().expect("what was stored can be read"))
}

/// What all limits together say.
fn combined(limits: &[LimitReport]) -> Decided {
    let mut outcome = Decided::Allowed;
    for limit in limits.iter().filter(|limit| !limit.shadow) {
        outcome = match (outcome, limit.verdict) {
            (Decided::NeverFits, _) | (_, Verdict::Never) => Decided::NeverFits,
            (outcome, Verdict::Fits) => outcome,
            (Decided::Refused { retry_at }, Verdict::At(at)) => {
                Decided::Refused { retry_at: retry_at.max(at) }
            }
            (Decided::Allowed, Verdict::At(retry_at)) => Decided::Refused { retry_at },
        };
    }
    outcome
}

struct One(Option<State>);

impl States for One {
    fn get(&self, _: usize) -> Option<&State> {
        self.0.as_ref()
    }

    fn get_or_insert_with(&mut self, _: usize, _: impl FnOnce() -> State) -> &mut State {
        unreachable!("a peek changes no state")
    }
}

pub(super) fn cost(units: u32) -> Cost {
    Cost::new(units).expect("a simulation asks for at least one")
}

pub(super) fn instant(micros: i64) -> Instant {
    Instant::from_micros(micros)
}
