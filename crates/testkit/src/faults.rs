//! Faults with real parts: what do callers see, how soon is it over, and is every count right?
//!
//! Each fault is done to a real `tollgate serve`, its disk, its network, its database or its other
//! clients, while callers ask it over HTTP all the time. Every answer is written down with its moment. Then
//! what callers saw is told in numbers, and everything that was allowed, refused and scheduled is judged by
//! [`crate::history`] and held against what README.md promises.
//!
//! Deliberately absent: clocks that step (the simulation and the stores' tests have those), and several
//! instances (`soak` has those).

mod clients;
mod database;
mod disk;
mod load;
mod mail;
mod measure;
mod process;
mod server;
mod smtp;
mod stage;
mod strangers;
mod table;
mod verdict;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use database::{Network, Restart, Row};
use process::Kept;
pub use stage::Report;
pub use table::{table, write_into};

/// A fault that takes longer hangs. The longest has seconds of its own, waits for recovery, and restarts.
const AT_MOST: Duration = Duration::from_secs(60);

/// Everything that can be broken, by name, in this order.
pub const NAMES: [&str; 17] = [
    "kill-sync",
    "kill-interval",
    "kill-postgres",
    "stop-sqlite",
    "stop-postgres",
    "disk-full",
    "postgres-restart",
    "postgres-crash",
    "postgres-paused",
    "network-cut",
    "network-black-hole",
    "connections-taken",
    "everybodys-row-locked",
    "one-row-locked",
    "idle-connections",
    "slow-clients",
    "mail-server-gone",
];

/// What to break, and under which load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `tollgate`
    pub server: PathBuf,
    /// Connections that ask all the time.
    pub callers: u32,
    /// Between an answer and the next question of one caller.
    pub rest: Duration,
    /// Connections that do nothing, in that fault.
    pub idle: u64,
    /// Slow clients of each kind, in that fault; a quarter of it where each is costly.
    pub slow: u32,
    /// What a loaded machine may add to any wait. What is told apart is far longer.
    pub slack: Duration,
}

impl Plan {
    /// The load of the published table.
    pub fn of(server: PathBuf) -> Self {
        let (rest, slack) = (Duration::from_millis(5), Duration::from_secs(1));
        Self { server, callers: 32, rest, idle: 10_000, slow: 200, slack }
    }
}

/// What came of each: a report, or the name and why there is none.
pub type Outcome = Result<Report, (&'static str, String)>;

/// Does these to it, one after the other.
pub fn run(plan: &Plan, names: &[&str]) -> Result<Vec<Outcome>, String> {
    let known = |name: &&str| NAMES.into_iter().find(|known| known == name);
    let names: Vec<&'static str> = names
        .iter()
        .map(|name| {
            known(name).ok_or_else(|| format!("no fault is called {name:?}: {}", NAMES.join(", ")))
        })
        .collect::<Result<_, _>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let mut outcomes = Vec::new();
    for (number, name) in names.iter().copied().enumerate() {
        let began = Instant::now();
        eprint!("{} of {}: {name} … ", number + 1, names.len());
        let (plan, at_most) = (plan.clone(), AT_MOST + plan.slack * 15);
        let outcome = runtime.block_on(async {
            // On a task of its own: whatever it waits for, this one can stop waiting.
            let fault = tokio::spawn(async move { break_it(&plan, name).await });
            match tokio::time::timeout(at_most, fault).await {
                Ok(Ok(report)) => report,
                Ok(Err(panic)) => Err(panic.to_string()),
                Err(_) => Err(format!("hangs: no end after {} s", at_most.as_secs())),
            }
        });
        let outcome = outcome.map_err(|why| (name, why));
        eprintln!("{}, {} s", in_a_word(&outcome), began.elapsed().as_secs());
        outcomes.push(outcome);
    }
    // What hangs must not hold this up too.
    runtime.shutdown_background();
    Ok(outcomes)
}

/// Whether it ended, and every promise was kept.
pub fn is_well(outcome: &Outcome) -> bool {
    matches!(outcome, Ok(report) if report.broken.is_empty())
}

fn in_a_word(outcome: &Outcome) -> String {
    match outcome {
        Ok(report) if report.broken.is_empty() => "all promises kept".into(),
        Ok(report) => format!("BROKEN: {}", report.broken.join("; ")),
        Err((_, why)) => format!("FAILED: {why}"),
    }
}

async fn break_it(plan: &Plan, name: &'static str) -> Result<Report, String> {
    match name {
        "kill-sync" => process::killed(plan, name, Kept::Sync).await,
        "kill-interval" => process::killed(plan, name, Kept::Interval).await,
        "kill-postgres" => process::killed(plan, name, Kept::Postgres).await,
        "stop-sqlite" => process::stopped(plan, name, Kept::Interval).await,
        "stop-postgres" => process::stopped(plan, name, Kept::Postgres).await,
        "disk-full" => disk::full(plan, name).await,
        "postgres-restart" => database::restarted(plan, name, Restart::Fast).await,
        "postgres-crash" => database::restarted(plan, name, Restart::Immediate).await,
        "postgres-paused" => database::paused(plan, name).await,
        "network-cut" => database::cut_off(plan, name, Network::Cut).await,
        "network-black-hole" => database::cut_off(plan, name, Network::BlackHole).await,
        "connections-taken" => database::exhausted(plan, name).await,
        "everybodys-row-locked" => database::locked(plan, name, Row::Everybodys).await,
        "one-row-locked" => database::locked(plan, name, Row::OneUsers).await,
        "idle-connections" => clients::idle(plan, name).await,
        "slow-clients" => clients::slow(plan, name).await,
        "mail-server-gone" => mail::gone(plan, name).await,
        _ => Err("nothing is done under this name".into()),
    }
}
