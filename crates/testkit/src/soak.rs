//! Many instances on one PostgreSQL, for long: is there ever one too many?
//!
//! A soak is a row of rounds. In each, several processes check hot keys as fast as they can, while
//! limits are raised and lowered, instances are killed and started again, and now and then
//! PostgreSQL crashes. Each process writes every answer down before it goes on; at the end of the
//! round all logs are put together and judged by [`crate::history`]. Policies have fresh names in
//! each round, so what must be kept in mind is bounded by one round.
//!
//! The seed gives the plan: who asks what in which turn, under which policies, and after how many
//! answers what is done to whom. How the threads of five processes then meet is chance.

mod changes;
mod child;
mod door;
mod http;
mod instance;
mod record;
mod round;
pub(crate) mod scene;
mod script;
mod summary;
mod verdict;

use std::path::PathBuf;
use std::time::{Duration, Instant as Stopwatch};

pub use child::play;
pub use round::{Ground, LimitsChange, Outage, Round};
pub use scene::Scene;
pub use summary::Summary;
pub use verdict::CaseVerdict;

use crate::dice::Dice;
use crate::servers::{Postgres, Settings};

/// Nobody waits longer for an answer of the store. Longer than the default: the machine is busy.
const DEADLINE: Duration = Duration::from_secs(2);
/// Callers in each instance: few, so that a kill leaves little in doubt, or many, so that batches are
/// large.
const TASKS: [u16; 4] = [64, 1000, 2000, 2000];
/// What the callers of one instance ask in one round, at most.
const ASKED: u64 = 200_000;
/// What each caller asks in one round, at most.
const TURNS: u64 = 100;
/// Between two lines of progress.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// How long and how cruel.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Made by the database itself; those repeated from memory come on top.
    pub decisions: u64,
    /// Processes with the library in them.
    pub instances: u64,
    /// In all; spread over the rounds.
    pub kills: u64,
    pub seed: u64,
    /// This binary.
    pub program: PathBuf,
    /// `tollgate`: one more instance over HTTP.
    pub server: Option<PathBuf>,
    /// For the logs of one round.
    pub folder: PathBuf,
}

/// Soaks until the database has made as many decisions as planned. The error says what could not go on;
/// what went wrong with the answers stands in the summary.
pub fn run(plan: &Plan) -> Result<Summary, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let postgres = Postgres::start_with(Settings { fsync: true, ..Settings::default() });
    let mut summary = Summary::default();
    let mut dice = Dice::of(&[plan.seed]);
    let mut line = Line::new(plan.decisions);
    while summary.decided_in_database() < plan.decisions {
        let number = summary.rounds + 1;
        // The shield stands in every third round, so that most decisions are the database's.
        let shield = if number.is_multiple_of(3) { "on" } else { "off" };
        let settings = format!("shield={shield}");
        let ground = Ground {
            postgres: &postgres,
            program: &plan.program,
            server: plan.server.as_deref(),
            folder: &plan.folder,
            settings: &settings,
            deadline: DEADLINE,
        };
        let outage = match number % 4 {
            1 => Outage::Crash,
            3 => Outage::Restart,
            _ => Outage::None,
        };
        // While the database is away every caller adds to what is in doubt: so only few meet that.
        let tasks = dice.pick(if outage == Outage::None { &TASKS } else { &TASKS[..2] });
        let turns = (ASKED / u64::from(tasks)).min(TURNS);
        let round = Round {
            scene: Scene::All,
            seed: plan.seed,
            number,
            instances: plan.instances,
            tasks,
            turns: u32::try_from(turns).expect("it is small"),
            kills: plan.kills_of_round(&summary, &mut dice),
            outage,
            changes: LimitsChange::Meanwhile,
        };
        let played = round.play(&ground, |records| line.tell(&summary, records));
        let (_, seen) =
            runtime.block_on(played).map_err(|error| format!("round {number}: {error}"))?;
        summary.add(&seen);
        if summary.wrongs() > 0 {
            break;
        }
    }
    Ok(summary)
}

impl Plan {
    /// What is left of the kills, spread over what is left of the decisions.
    fn kills_of_round(&self, so_far: &Summary, dice: &mut Dice) -> u64 {
        let left = self.decisions.saturating_sub(so_far.decided_in_database());
        let rounds_left = left.div_ceil(self.instances * ASKED).max(1);
        let share = self.kills.saturating_sub(so_far.kills).div_ceil(rounds_left);
        // Every so often a round without: there nothing is in doubt.
        if dice.one_in(5) && rounds_left > 1 { 0 } else { share }
    }
}

/// The line of progress.
struct Line {
    decisions: u64,
    started: Stopwatch,
    told: Stopwatch,
}

impl Line {
    fn new(decisions: u64) -> Self {
        Self { decisions, started: Stopwatch::now(), told: Stopwatch::now() }
    }

    fn tell(&mut self, so_far: &Summary, records: u64) {
        if self.told.elapsed() < BETWEEN_LINES {
            return;
        }
        self.told = Stopwatch::now();
        eprintln!(
            "{} s: {} of {} decisions in {} rounds, {} more records in this one; {} kills, {} \
             crashes and restarts, {} errors, {} over-admissions",
            self.started.elapsed().as_secs(),
            so_far.decided_in_database(),
            self.decisions,
            so_far.rounds,
            records,
            so_far.kills,
            so_far.crashes + so_far.restarts,
            so_far.errors(),
            so_far.over_admissions
        );
    }
}
