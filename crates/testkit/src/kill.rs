//! Kill -9, open again, compare: is everything there that was answered?
//!
//! A child process hammers one file and says on a pipe what it was told; the parent kills it at a
//! random moment, opens the file and looks. Every check spends in three limits. The first counts
//! everybody together, so its `used` is the decision's place in the one order there is, and a file
//! that is a prefix of what was decided holds exactly the places up to its own `used`.

mod child;
mod round;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use child::hammer;
use round::{Loss, Round, Tally};

use tollgate::Durability;

/// What a crash may forget of a policy with `durability = "interval"`: decisions of so long a
/// stretch of time. They are the last before the crash unless the disk stalls: then they may be
/// the first of the stall, because all later answers wait for the disk.
pub const PROMISED_LOSS_MICROS: i64 = 100_000;
/// How to be cruel.
#[derive(Clone, Debug)]
pub struct Plan {
    pub kills: u32,
    pub durability: Durability,
    /// This binary, which can be the child.
    pub program: PathBuf,
    /// Where the file lies.
    pub folder: PathBuf,
    /// What the machine may add to the promised loss, which is counted from when a decision is put down for
    /// the file: the first that was lost may have read the clock before that and been put aside.
    pub room: Duration,
}

/// What was seen over all kills.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    pub kills: u32,
    /// Answers the parent read.
    pub decisions: u64,
    /// Of these, the ones the file did not hold.
    pub forgotten: u64,
    /// The longest stretch of time that one kill took decisions from.
    pub worst_loss_micros: i64,
    /// From the answer of the oldest forgotten decision to its kill.
    pub oldest_loss_micros: i64,
    /// Kills that took an answer older than the promise: the disk was slow.
    pub late_kills: u32,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |micros: i64| format!("{}.{} ms", micros / 1000, micros % 1000 / 100);
        write!(
            f,
            "{} kills, {} decisions, {} forgotten, worst loss {}; the oldest was answered {} \
             before its kill, {} kills took one older than {}",
            self.kills,
            self.decisions,
            self.forgotten,
            millis(self.worst_loss_micros),
            millis(self.oldest_loss_micros),
            self.late_kills,
            millis(PROMISED_LOSS_MICROS),
        )
    }
}

/// Kills and looks, `plan.kills` times on one file. The error says which promise was broken.
pub fn run(plan: &Plan, mut progress: impl FnMut(&Summary)) -> Result<Summary, String> {
    let file = plan.folder.join("kill.db");
    let mut summary = Summary::default();
    let mut tally = Tally::default();
    let room_micros = i64::try_from(plan.room.as_micros()).map_err(|error| error.to_string())?;
    for number in 1..=plan.kills {
        let at = |error: String| format!("kill {number}: {error}");
        let round = Round::play(child(plan, &file)).map_err(at)?;
        let after = Tally::read(&file).map_err(at)?;
        after.is_one_moment().map_err(at)?;
        let loss = round.compare(&tally, &after).map_err(at)?;
        summary.add(round.answers(), loss);
        let kept = match plan.durability {
            Durability::Sync => loss.forgotten == 0,
            Durability::Interval => loss.span_micros <= PROMISED_LOSS_MICROS + room_micros,
        };
        if !kept {
            return Err(at(format!("the promise is broken by {loss:?}; so far: {summary}")));
        }
        tally = after;
        progress(&summary);
    }
    Ok(summary)
}

impl Summary {
    fn add(&mut self, answers: usize, loss: Loss) {
        self.kills += 1;
        self.decisions += answers as u64;
        self.forgotten += loss.forgotten;
        self.worst_loss_micros = self.worst_loss_micros.max(loss.span_micros);
        self.oldest_loss_micros = self.oldest_loss_micros.max(loss.before_kill_micros);
        self.late_kills += u32::from(loss.before_kill_micros > PROMISED_LOSS_MICROS);
    }
}

fn child(plan: &Plan, file: &Path) -> Command {
    let durability = match plan.durability {
        Durability::Sync => "sync",
        Durability::Interval => "interval",
    };
    let mut command = Command::new(&plan.program);
    command.arg("hammer").arg(file).arg(durability);
    command
}
