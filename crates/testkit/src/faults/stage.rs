//! One fault from beginning to end: a server under load, as usual, broken, and as usual again.

use std::path::Path;
use std::time::Duration;

use super::Plan;
use super::load::{Crowd, Load, Trouble, policies};
use super::measure::{Measured, Recovery, millis};
use super::server::{Server, Setup};
use super::verdict::{Case, Refusals, Verdict, judge};

/// Before the fault: connections are made and plans are prepared, then what is usual is measured.
const WARMING: Duration = Duration::from_millis(700);
const USUAL: Duration = Duration::from_millis(1500);
/// After the fault, at least this long and at most that long, until callers are served. What was in doubt
/// has then left every window, and a while is judged without it.
const AFTER: Duration = Duration::from_millis(4500);
const AFTER_AT_MOST: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);

/// A server and its callers.
pub(super) struct Stage {
    pub(super) server: Server,
    pub(super) load: Load,
    usual_from: Duration,
    begun: Duration,
    ended: Duration,
    slack: Duration,
    /// When the server was started again.
    restarted: Option<Duration>,
}

/// What is promised of a fault.
#[derive(Clone, Debug)]
pub(super) struct Promise {
    /// What callers may meet while it lasts.
    pub(super) troubles: &'static [Trouble],
    /// The longest wait for any answer.
    pub(super) answered_within: Duration,
    /// From the end of the fault to the first good answer.
    pub(super) back_within: Duration,
    /// Decisions of so long a stretch may be forgotten.
    pub(super) forgets: Duration,
    /// Whatever was counted was answered.
    pub(super) answers_what_it_counts: bool,
}

/// What came of one fault.
#[derive(Clone, Debug)]
pub struct Report {
    pub name: &'static str,
    /// What was done.
    pub fault: String,
    pub(super) usual: Measured,
    pub(super) during: Measured,
    pub(super) recovery: Recovery,
    pub(super) checked: String,
    /// Promises that were not kept; none if all is well.
    pub broken: Vec<String>,
}

impl Promise {
    pub(super) const fn of(troubles: &'static [Trouble]) -> Self {
        Self {
            troubles,
            answered_within: Duration::from_secs(1),
            back_within: Duration::from_secs(2),
            forgets: Duration::ZERO,
            answers_what_it_counts: false,
        }
    }

    /// As a loaded machine can keep it.
    fn with(&self, slack: Duration) -> Self {
        let (answered, back) = (self.answered_within + slack, self.back_within + slack);
        Self { answered_within: answered, back_within: back, ..self.clone() }
    }
}

/// How a stage is set up; the usual way but for what is named.
pub(super) struct Scenery<'a> {
    pub(super) folder: &'a Path,
    pub(super) store: String,
    pub(super) durability: &'static str,
    /// Further lines of the configuration, before the policies.
    pub(super) config: &'static str,
    pub(super) visitors: u32,
}

impl Stage {
    /// Starts the server and its callers, and lets them run for a while.
    pub(super) async fn open(plan: &Plan, scenery: Scenery<'_>) -> Result<Self, String> {
        let setup = Setup {
            program: plan.server.clone(),
            folder: scenery.folder.to_owned(),
            store: scenery.store,
            config: format!("{}\n{}", scenery.config, policies(scenery.durability)),
        };
        let server = blocking(|| Server::start(setup))?;
        let crowd = Crowd { callers: plan.callers, rest: plan.rest, visitors: scenery.visitors };
        let load = Load::start(server.address(), &crowd);
        tokio::time::sleep(WARMING).await;
        let usual_from = load.now();
        tokio::time::sleep(USUAL).await;
        let (begun, ended) = (Duration::ZERO, Duration::ZERO);
        Ok(Self { server, load, usual_from, begun, ended, slack: plan.slack, restarted: None })
    }

    /// From now on it is broken.
    pub(super) fn begin(&mut self) {
        self.begun = self.load.now();
    }

    /// From now on it is whole again.
    pub(super) fn end(&mut self) {
        self.ended = self.load.now();
    }

    /// Starts the server that was ended; with that, the fault is over.
    pub(super) fn start_again(&mut self) -> Result<(), String> {
        self.end();
        self.restarted = Some(self.ended);
        blocking(|| self.server.start_again())
    }

    /// Waits until callers are served again, and judges everything.
    pub(super) async fn close(
        self,
        name: &'static str,
        fault: impl Into<String>,
        promise: &Promise,
    ) -> Result<Report, String> {
        self.settle().await;
        let Self { server, load, usual_from, begun, ended, slack, restarted } = self;
        let requested_time = load.requested_time().to_owned();
        let log = load.stop().await;
        let usual = Measured::between(&log.records, usual_from, begun);
        let recovery = Recovery::of(&log.records, ended, &usual);
        let until = ended + recovery.as_before.or(recovery.first_good).unwrap_or(Duration::MAX / 4);
        let (during, outside) = Measured::split(&log.records, begun, until);
        let refusals = match server.store().starts_with("postgres:") {
            true => Refusals::CountsOrMemory,
            false => Refusals::Counts,
        };
        let (address, requested_time) = (server.address(), requested_time.as_str());
        let case = Case { address, requested_time, log: &log, restarted, refusals };
        let verdict = judge(&case).await?;
        let promise = promise.with(slack);
        let broken = broken(&promise, (&during, &outside), recovery, &verdict);
        let fault = fault.into();
        let checked = in_words(&verdict, &promise);
        Ok(Report { name, fault, usual, during, recovery, checked, broken })
    }

    /// Until good answers come, and a while longer.
    async fn settle(&self) {
        let ended = self.load.now();
        let mut good = self.load.good();
        loop {
            tokio::time::sleep(POLL).await;
            let (passed, now_good) = (self.load.now() - ended, self.load.good());
            let is_served = now_good > good;
            good = now_good;
            if passed > AFTER_AT_MOST || passed > AFTER && is_served {
                return;
            }
        }
    }
}

/// The promises that were not kept.
fn broken(
    promise: &Promise,
    (during, outside): (&Measured, &Measured),
    recovery: Recovery,
    verdict: &Verdict,
) -> Vec<String> {
    let mut broken = verdict.wrongs.clone();
    for (trouble, count) in &during.troubles {
        if !promise.troubles.contains(trouble) {
            broken.push(format!("{count} × {trouble}"));
        }
    }
    if !outside.troubles.is_empty() {
        broken.push(format!("before or long after the fault: {}", outside.troubles_in_words()));
    }
    if during.max > promise.answered_within {
        broken.push(format!("an answer took {} ms", millis(during.max)));
    }
    match recovery.first_good {
        None => broken.push("callers were never served again".into()),
        Some(took) if took > promise.back_within => {
            broken.push(format!("served again only after {} ms", millis(took)));
        }
        Some(_) => {}
    }
    if verdict.forgotten > 0 && verdict.forgotten_span > promise.forgets {
        let (count, span) = (verdict.forgotten, millis(verdict.forgotten_span));
        broken.push(format!("{count} decisions of {span} ms are forgotten"));
    }
    if promise.answers_what_it_counts && verdict.unheard > 0 {
        broken.push(format!("{} were counted and not answered", verdict.unheard));
    }
    broken
}

/// What was held against what.
fn in_words(verdict: &Verdict, promise: &Promise) -> String {
    let Verdict { allowed, refused, forgotten, unheard, slots, .. } = verdict;
    let decisions = allowed + refused;
    let lost = match (*forgotten, promise.forgets) {
        (0, Duration::ZERO) => "none forgotten".to_owned(),
        (forgotten, Duration::ZERO) => format!("{forgotten} forgotten"),
        (forgotten, promised) => {
            let (span, promised) = (millis(verdict.forgotten_span), promised.as_millis());
            format!("{forgotten} of {span} ms forgotten (promised: at most {promised} ms)")
        }
    };
    // What is wrong is told as broken.
    let [checks_are_right, slots_are_right] = match verdict.wrongs.is_empty() {
        true => [" none above max in any window,", ", each given and counted once"],
        false => ["", ""],
    };
    format!(
        "{decisions} decisions, {allowed} allowed:{checks_are_right} {lost}, \
         {unheard} counted unheard; {slots} slots{slots_are_right}"
    )
}

/// For what waits without giving way to others.
pub(super) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}
