//! Who is refused most, and alerts about it.
//!
//! Only refusals are recorded, and a check never waits for it (`intake.rs`). Now and then they are
//! collected: on a store of one process into its memory (`history.rs`, `rules.rs`), where a restart
//! forgets them; on a shared store into its tables (`merge.rs`), where all instances' add up.
//! Deliberately absent: refusals of policies that are stored nowhere, and of peeks.

mod history;
mod intake;
mod merge;
mod rules;
mod shown;
mod sketch;

use std::fmt;
use std::sync::{Arc, OnceLock};

use tollgate_core::store::{StoreError, StoreErrorKind};
use tollgate_core::{Decision, Instant, Span};

use crate::compiled::{Compiled, Keys};
use crate::error::Error;
use crate::gate::{Shared, Tollgate};
use crate::store::Store;

pub use rules::{Alert, AlertRule, AlertScope};

use history::{History, Refusals, Series};
use intake::{Intake, PolicyRefusals};
use rules::{Alerts, RuleState};
use sketch::Sketch;

/// Refusals are added up in slices of this length, from the epoch.
pub(crate) const OFFENDER_SLICE: Span = Span::from_secs(5 * 60);
/// For so long they are kept.
pub const OFFENDERS_KEPT: Span = Span::from_secs(24 * 3600);
/// Subjects of one limit in one slice: a count is short of the truth by at most the limit's
/// refusals in that slice divided by one more than this.
const SUBJECTS_PER_SLICE: usize = 256;
/// Subjects of one limit in one collection.
const SUBJECTS_PER_COLLECTION: usize = 1024;

/// A subject that was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offender {
    pub policy: String,
    pub limit: String,
    /// A JSON object of what the limit counts by. Private values are short keyed hashes.
    pub subject: String,
    /// At least so often.
    pub refused: u64,
    /// And at most so many times more.
    pub error: u64,
    pub first_seen: Instant,
    pub last_seen: Instant,
}

/// Who was refused most, most first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OffenderList {
    /// The start of the oldest slice that counts.
    pub since: Instant,
    pub offenders: Vec<Offender>,
}

/// Recording, once somebody wants to know.
#[derive(Debug, Default)]
pub(crate) struct Watcher(OnceLock<Watch>);

struct Watch {
    intake: Intake,
    rules: Vec<AlertRule>,
    on_alert: Box<dyn Fn(&Alert) + Send + Sync>,
    state: tokio::sync::Mutex<State>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("rules", &self.rules).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum State {
    /// All there is, in a store of one process.
    Own { history: History, rules: Vec<RuleState>, alerts: Alerts },
    /// What the shared store was not told yet.
    Shared { pending: Refusals },
}

impl Watcher {
    /// The check path's part: nothing but a look if it was allowed.
    #[inline]
    pub(crate) fn decided(&self, policy: &Arc<Compiled>, keys: &Keys<'_>, decision: &Decision) {
        if !decision.allowed() && policy.version() > 0 {
            self.refused(policy, keys, decision);
        }
    }

    #[cold]
    fn refused(&self, policy: &Arc<Compiled>, keys: &Keys<'_>, decision: &Decision) {
        if let Some(watch) = self.0.get() {
            watch.intake.record(policy, keys, decision);
        }
    }
}

impl Tollgate {
    /// Begins to record refusals, and to raise alerts by these rules. Once: later calls change
    /// nothing and say `false`. From then on, call [`Tollgate::collect_refusals`] every second or
    /// two. `on_alert` hears of every alert that this instance raises; it must not block.
    pub fn watch_refusals(
        &self,
        rules: Vec<AlertRule>,
        on_alert: impl Fn(&Alert) + Send + Sync + 'static,
    ) -> bool {
        let state = if self.shared.store.is_shared() {
            State::Shared { pending: Refusals::default() }
        } else {
            State::Own {
                history: History::new(OFFENDER_SLICE, OFFENDERS_KEPT, SUBJECTS_PER_SLICE),
                rules: rules.iter().cloned().map(RuleState::new).collect(),
                alerts: Alerts::after(self.now()),
            }
        };
        let watch = Watch {
            intake: Intake::new(),
            rules,
            on_alert: Box::new(on_alert),
            state: tokio::sync::Mutex::new(state),
        };
        self.shared.watcher.0.set(watch).is_ok()
    }

    /// Adds up what was refused since the last time, and raises alerts.
    pub async fn collect_refusals(&self) -> Result<(), Error> {
        let Store::Postgres(store) = &self.shared.store else { return self.collect_here().await };
        // Goes on if nobody waits any more: what was committed must not be told again, and its
        // alerts must be heard of.
        let gate = self.clone();
        let collecting = store.runtime().spawn(async move { gate.collect_here().await });
        collecting.await.unwrap_or_else(|_| {
            let message = "the store was closed while refusals were collected";
            Err(StoreError::new(StoreErrorKind::Unavailable, message).into())
        })
    }

    async fn collect_here(&self) -> Result<(), Error> {
        let Some(watch) = self.shared.watcher.0.get() else { return Ok(()) };
        let mut state = watch.state.lock().await;
        let raised = watch.collect(&self.shared, &mut state).await?;
        drop(state);
        raised.iter().for_each(|alert| (watch.on_alert)(alert));
        Ok(())
    }

    /// Who was refused most in the time up to now, most first.
    pub async fn offenders(&self, since: Span, limit: u32) -> Result<OffenderList, Error> {
        let since = self.now().minus(since.min(OFFENDERS_KEPT)).floor_to(OFFENDER_SLICE);
        let offenders = Vec::new();
        let Some(watch) = self.shared.watcher.0.get() else {
            return Ok(OffenderList { since, offenders });
        };
        self.collect_refusals().await?;
        let offenders = match (&self.shared.store, &*watch.state.lock().await) {
            (Store::Postgres(store), _) => merge::offenders(store, since, limit).await?,
            (Store::Embedded(_), State::Own { history, .. }) => {
                let top =
                    history.top(since, self.now(), usize::try_from(limit).unwrap_or(usize::MAX));
                top.into_iter().map(Offender::from).collect()
            }
            (Store::Embedded(_), State::Shared { .. }) => offenders,
        };
        Ok(OffenderList { since, offenders })
    }

    /// Alerts, newest first; those before an id if one is given.
    pub async fn alerts(&self, before: Option<u64>, limit: u32) -> Result<Vec<Alert>, Error> {
        let Some(watch) = self.shared.watcher.0.get() else { return Ok(Vec::new()) };
        self.collect_refusals().await?;
        match (&self.shared.store, &*watch.state.lock().await) {
            (Store::Postgres(store), _) => merge::alerts(store, before, limit).await,
            (Store::Embedded(_), State::Own { alerts, .. }) => {
                Ok(alerts.list(before, usize::try_from(limit).unwrap_or(usize::MAX)))
            }
            (Store::Embedded(_), State::Shared { .. }) => Ok(Vec::new()),
        }
    }

    /// Refused checks that are in no list of offenders, because there was no time or room for them.
    pub fn unrecorded_refusals(&self) -> u64 {
        self.shared.watcher.0.get().map_or(0, |watch| watch.intake.unrecorded())
    }
}

impl Watch {
    async fn collect(&self, shared: &Shared, state: &mut State) -> Result<Vec<Alert>, Error> {
        let taken = self.intake.take();
        let now = shared.store.now();
        match state {
            State::Own { history, rules, alerts } => {
                let mut refusals = Refusals::default();
                add_up(&mut refusals, taken, now);
                let raised = rules.iter_mut().flat_map(|rule| rule.add(&refusals, now));
                let raised = raised.map(|alert| alerts.push(alert)).collect();
                refusals.retain(|series, _| !series.limit.is_empty());
                self.intake.lose(history.add(&refusals, now));
                Ok(raised)
            }
            State::Shared { pending } => {
                add_up(pending, taken, now);
                let Store::Postgres(store) = &shared.store else { return Ok(Vec::new()) };
                let raised = merge::merge(store, pending, &self.rules, now).await?;
                // Only now: if the store cannot be told, it is told the next time.
                pending.clear();
                Ok(raised)
            }
        }
    }
}

/// Brings the shards of all policies together, subjects as they are shown. What was refused at an
/// instant still to come, of a key that a clock ahead had touched, was refused by now: else it
/// would count for nobody until then.
fn add_up(refusals: &mut Refusals, taken: Vec<PolicyRefusals>, now: Instant) {
    for PolicyRefusals { policy, all, limits } in taken {
        let name = policy.policy().shared_name();
        let series = Series { policy: name.clone(), limit: "".into() };
        sketch_of(refusals, series).add("".into(), all.by(now));
        for (position, sketch) in limits.into_iter().enumerate() {
            if sketch.len() == 0 && sketch.missed() == 0 {
                continue;
            }
            let limit = &policy.policy().limits()[position];
            let series = Series { policy: name.clone(), limit: limit.name.as_str().into() };
            let kept = sketch_of(refusals, series);
            kept.miss(sketch.missed());
            for (subject, tally) in sketch {
                kept.add(shown::subject(limit, &subject).into(), tally.by(now));
            }
        }
    }
}

fn sketch_of(refusals: &mut Refusals, series: Series) -> &mut Sketch<Arc<str>> {
    refusals.entry(series).or_insert_with(|| Sketch::new(SUBJECTS_PER_COLLECTION))
}

impl From<history::Total> for Offender {
    fn from(total: history::Total) -> Self {
        Self {
            policy: total.series.policy.to_string(),
            limit: total.series.limit.to_string(),
            subject: total.subject.to_string(),
            refused: total.tally.refused,
            error: total.missed,
            first_seen: total.tally.first_seen,
            last_seen: total.tally.last_seen,
        }
    }
}
