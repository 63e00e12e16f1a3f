//! Deterministic simulation: the whole PostgreSQL-backed engine, several instances of it, in one
//! thread on a stopped clock, against a database in memory, with everything going wrong that can.
//!
//! What runs is the library and its store unchanged, down to the PostgreSQL protocol: lanes, batches,
//! remembered states, shield, idempotency, refunds, epochs, sweeps, reconnecting. What is simulated is
//! the network (`line.rs`), the database (`database.rs`, `statements.rs`) and time. Every choice comes
//! from the seed, so a seed is a history, and the same one each time.
//!
//! Judged are the answers: `verdict.rs` finds for every commit the requests that explain it by the core,
//! one after the other, and holds all other answers against the states there were; `bound.rs` sums up
//! what was admitted without the core. Deliberately absent: slots, alerts, tokens, `on_store_error`
//! other than `refuse`, and PostgreSQL itself: its locks are imitated from its documentation.

mod bound;
mod catalogue;
mod database;
mod explain;
mod history;
mod instance;
mod line;
mod play;
mod request;
mod scene;
mod session;
mod statements;
mod verdict;
mod weather;
mod wire;

use std::cell::Cell;
use std::fmt;
use std::sync::Once;
use std::time::Duration;

use history::{Event, Outcome};
use play::Played;
use verdict::Wrong;

/// Every call is answered by then.
const DEADLINE: Duration = Duration::from_millis(300);
/// Steps shown of a history that is wrong.
const SHOWN_STEPS: usize = 40;

/// What happened in one or more simulations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    pub seeds: u64,
    pub requests: u64,
    pub allowed: u64,
    pub refused: u64,
    pub refunded: u64,
    pub replayed: u64,
    /// Answered with an error.
    pub failed: u64,
    /// Never answered: their instance crashed.
    pub lost: u64,
    pub commits: u64,
    /// Of these, decided on remembered states.
    pub by_memory: u64,
    /// Changes of what is in force.
    pub changes: u64,
}

/// A seed whose history cannot be right.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub what: String,
    /// The last steps before it showed.
    pub steps: String,
}

/// Plays and judges one seed.
pub fn run(seed: u64) -> Result<Tally, Box<Failure>> {
    let played = played(seed);
    let failure = |Wrong { step, what }| {
        let steps = played.history.tail(step.saturating_add(1), SHOWN_STEPS);
        Box::new(Failure { seed, what, steps })
    };
    let trail = verdict::judge(&played).map_err(failure)?;
    bound::check(&played, &trail).map_err(failure)?;
    match &played.impossible {
        Some((step, what)) => Err(failure(Wrong { step: *step, what: what.clone() })),
        None => Ok(Tally::of(&played)),
    }
}

/// A number that is another for another history.
pub fn digest(seed: u64) -> u64 {
    played(seed).history.digest()
}

/// The whole history of a seed, to be read.
pub fn tell(seed: u64) -> String {
    played(seed).history.tail(usize::MAX, usize::MAX)
}

fn played(seed: u64) -> Played {
    count_panics();
    let before = PANICS.get();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can always be made");
    let mut played = runtime.block_on(play::play(seed));
    drop(runtime);
    if PANICS.get() > before {
        let what = "something panicked: see above".into();
        played.impossible.get_or_insert((usize::MAX, what));
    }
    played
}

thread_local! {
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

/// A task that panics ends silently: so everybody's panics are counted.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            before(panic);
        }));
    });
}

impl Tally {
    fn of(played: &Played) -> Self {
        let mut tally = Self { seeds: 1, ..Self::default() };
        for request in &played.history.requests {
            tally.requests += 1;
            match request.answer.as_ref().map(|answer| &answer.outcome) {
                None => tally.lost += 1,
                Some(Outcome::Failed(_)) => tally.failed += 1,
                Some(Outcome::Replayed(_)) => tally.replayed += 1,
                Some(Outcome::Refunded(tollgate::Refunded::Done)) => tally.refunded += 1,
                Some(Outcome::Refunded(_)) => {}
                Some(Outcome::Decided { decision, .. }) if decision.allowed() => tally.allowed += 1,
                Some(Outcome::Decided { .. }) => tally.refused += 1,
            }
        }
        for step in &played.history.steps {
            if let Event::Committed(commit) = &step.event {
                tally.commits += 1;
                let known = commit.basis.as_ref().is_some_and(|basis| basis.known);
                tally.by_memory += u64::from(known);
                tally.changes += u64::from(commit.terms.is_some());
            }
        }
        tally
    }

    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.requests += other.requests;
        self.allowed += other.allowed;
        self.refused += other.refused;
        self.refunded += other.refunded;
        self.replayed += other.replayed;
        self.failed += other.failed;
        self.lost += other.lost;
        self.commits += other.commits;
        self.by_memory += other.by_memory;
        self.changes += other.changes;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds: {} requests ({} allowed, {} refused, {} given back, {} replayed, {} failed, \
             {} lost), {} commits ({} by memory), {} changes of policies",
            self.seeds,
            self.requests,
            self.allowed,
            self.refused,
            self.refunded,
            self.replayed,
            self.failed,
            self.lost,
            self.commits,
            self.by_memory,
            self.changes
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}seed {}: {}", self.steps, self.seed, self.what)
    }
}
