//! One kill: what the child said before, and what the file says after.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tollgate::{Clock, SystemClock, Tollgate};

use super::child::{GROUPS, POLICY, THREADS, USERS_PER_THREAD, group, user};
use crate::random;

const USERS: usize = THREADS * USERS_PER_THREAD;

/// What one child was told before it was killed.
pub(super) struct Round {
    answers: Vec<Answer>,
    killed_at_micros: i64,
}

/// One line of the child.
#[derive(Clone, Copy)]
struct Answer {
    user: usize,
    place: u64,
    decided_at_micros: i64,
    answered_at_micros: i64,
}

/// What the file holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Tally {
    all: u64,
    groups: Vec<u64>,
    users: Vec<u64>,
}

/// What one kill cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Loss {
    pub(super) forgotten: u64,
    /// From the answer of the oldest forgotten decision to the kill.
    pub(super) before_kill_micros: i64,
    /// From the first forgotten decision to the last.
    pub(super) span_micros: i64,
}

impl Round {
    /// Starts the child, kills it at a random moment, and reads what it said up to then.
    pub(super) fn play(mut child: Command) -> Result<Self, String> {
        let said = |error: std::io::Error| error.to_string();
        let mut child = child.stdout(Stdio::piped()).spawn().map_err(said)?;
        let pipe = child.stdout.take().ok_or("the child has no pipe")?;
        let (first, begun) = std::sync::mpsc::sync_channel(1);
        let reader = std::thread::spawn(move || {
            let mut answers = Vec::new();
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                // Only the last line can be half a line, and it names a decision all the same:
                // whatever is not whole is not counted as seen.
                let Some(answer) = Answer::parse(&line) else { break };
                if answers.is_empty() {
                    let _ = first.send(());
                }
                answers.push(answer);
            }
            answers
        });
        // One in eight dies while it opens the file; the others in the middle of their work.
        if random::below(8) != 0 {
            let _ = begun.recv();
        }
        std::thread::sleep(Duration::from_micros(random::below(250_000)));
        let killed_at_micros = SystemClock.now().as_micros();
        if let Some(status) = child.try_wait().map_err(said)? {
            return Err(format!("the child ended by itself: {status}"));
        }
        child.kill().map_err(said)?;
        child.wait().map_err(said)?;
        let answers = reader.join().map_err(|_| "the reader panicked")?;
        Ok(Self { answers, killed_at_micros })
    }

    pub(super) fn answers(&self) -> usize {
        self.answers.len()
    }

    /// What the file lost of what was answered. An error if it is not a prefix of it.
    pub(super) fn compare(&self, before: &Tally, after: &Tally) -> Result<Loss, String> {
        if after.all < before.all {
            return Err(format!("{} decisions were there, now {}", before.all, after.all));
        }
        let mut kept = before.users.clone();
        kept.resize(USERS, 0);
        let mut forgotten = Vec::new();
        for answer in &self.answers {
            if answer.place <= after.all {
                kept[answer.user] += 1;
            } else {
                forgotten.push(answer);
            }
        }
        // What is in the file and was not seen: answers under way when the child died, and those
        // of a child that died before it could say anything.
        let unseen: u64 = after.users.iter().sum::<u64>() - before.users.iter().sum::<u64>();
        let unseen = unseen.saturating_sub(self.answers.len() as u64 - forgotten.len() as u64);
        if unseen > THREADS as u64 {
            return Err(format!("{unseen} decisions that nobody was told of"));
        }
        for (user, (kept, found)) in kept.iter().zip(&after.users).enumerate() {
            if found < kept {
                return Err(format!("user {user} has {found} in the file, and was told {kept}"));
            }
        }
        let answered = forgotten.iter().map(|answer| answer.answered_at_micros).min();
        // The first by its place: a later one may have read the clock earlier.
        let first = forgotten.iter().min_by_key(|answer| answer.place);
        let last = forgotten.iter().map(|answer| answer.decided_at_micros).max();
        Ok(Loss {
            forgotten: forgotten.len() as u64,
            before_kill_micros: answered.map_or(0, |at| (self.killed_at_micros - at).max(0)),
            span_micros: first.zip(last).map_or(0, |(first, last)| last - first.decided_at_micros),
        })
    }
}

impl Answer {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let answer = Self {
            user: fields.next()?.parse().ok().filter(|user| *user < USERS)?,
            place: fields.next()?.parse().ok()?,
            decided_at_micros: fields.next()?.parse().ok()?,
            // A cut number would parse too: all of them have this many digits.
            answered_at_micros: fields.next().filter(|text| text.len() == 16)?.parse().ok()?,
        };
        fields.next().is_none().then_some(answer)
    }
}

impl Tally {
    /// Opens the file and asks for every key, without writing.
    pub(super) fn read(file: &Path) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let url = format!("sqlite:{}", file.display());
            let gate = Tollgate::open(&url).await.map_err(|error| error.to_string())?;
            let mut tally = Self { all: 0, groups: vec![0; GROUPS], users: vec![0; USERS] };
            if gate.policy(POLICY).is_err() {
                return Ok(tally);
            }
            for number in 0..USERS.max(GROUPS) {
                let (user, group) = (user(number % USERS), group(number % GROUPS));
                let subject = [("user", user.as_str()), ("group", group.as_str())];
                let peeked = gate.peek(POLICY, &subject, 1).await;
                let decision = peeked.map_err(|error| error.to_string())?.decision;
                let used = |limit: usize| decision.limits[limit].standing.used;
                tally.all = used(0);
                tally.groups[number % GROUPS] = used(1);
                tally.users[number % USERS] = used(2);
            }
            Ok(tally)
        })
    }

    /// Every decision spent in all three limits, so their totals are one number.
    pub(super) fn is_one_moment(&self) -> Result<(), String> {
        let totals = [self.all, self.groups.iter().sum::<u64>(), self.users.iter().sum::<u64>()];
        if totals.iter().all(|total| *total == self.all) {
            Ok(())
        } else {
            Err(format!("a decision is in some of its limits only: {totals:?}"))
        }
    }
}
