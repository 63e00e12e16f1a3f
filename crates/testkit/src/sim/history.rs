//! What happened, in order: what was asked and answered, and what the database did.

use std::fmt;

use tollgate::core::store::Receipt;
use tollgate::{Decision, Refunded, StoreErrorKind};

/// The bytes under which one limit counts one subject.
pub(super) type Key = Vec<u8>;

/// Everything, with the moment it happened.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) steps: Vec<Step>,
    pub(super) requests: Vec<Request>,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Since the simulation began.
    pub(super) at_millis: u64,
    /// What the database's clock showed.
    pub(super) clock: i64,
    /// The latest it ever showed.
    pub(super) latest_clock: i64,
    pub(super) event: Event,
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Asked(usize),
    Answered(usize),
    Committed(Commit),
    /// The clock was set; to what, says the step.
    ClockSet,
    /// Nothing to be judged, but to be read.
    Note(String),
}

/// One request of a caller.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) instance: usize,
    pub(super) what: What,
    /// Its step.
    pub(super) asked: usize,
    pub(super) answer: Option<Answer>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum What {
    Check {
        policy: usize,
        user: usize,
        cost: u32,
        once: Option<u64>,
    },
    Peek {
        policy: usize,
        user: usize,
        cost: u32,
    },
    /// Of the request with this number.
    Refund {
        of: usize,
        once: Option<u64>,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// Its step.
    pub(super) at: usize,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Decided {
        decision: Box<Decision>,
        /// Of the policy.
        version: u64,
        receipt: Option<Receipt>,
    },
    Refunded(Refunded),
    /// The record of the request with this number, under the same idempotency key.
    Replayed(Vec<u8>),
    Failed(StoreErrorKind),
}

/// What one transaction left behind.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    /// `None`: somebody who is no instance.
    pub(super) instance: Option<usize>,
    /// What it was decided by; `None`: nothing was.
    pub(super) basis: Option<Basis>,
    pub(super) counters: Vec<Change>,
    /// Run and sequence of each receipt given back, and whether it was before.
    pub(super) refunds: Vec<(i64, i64)>,
    /// What was recorded under idempotency keys.
    pub(super) records: Vec<Vec<u8>>,
    /// What is in force from here on, if that changed.
    pub(super) terms: Option<Box<Terms>>,
}

#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) key: Key,
    pub(super) before: Option<Vec<u8>>,
    pub(super) after: Option<Vec<u8>>,
}

/// What a batch was decided by.
#[derive(Clone, Debug)]
pub(super) struct Basis {
    /// The step after which it was asked of the database.
    pub(super) begun: usize,
    pub(super) now: i64,
    pub(super) swept_at: i64,
    pub(super) epoch: i64,
    /// What the clock showed when the last lock was granted, unless it was set since.
    pub(super) held_from: Option<i64>,
    /// Decided before the database was asked.
    pub(super) known: bool,
}

/// The maxima in force.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Terms {
    pub(super) epoch: i64,
    /// By policy: the version, and the maximum of each limit; a version that there is not is 0.
    pub(super) policies: Vec<(u64, Vec<u64>)>,
    /// Policy, limit, user: a maximum of their own.
    pub(super) overrides: Vec<(usize, usize, usize, u64)>,
}

impl Terms {
    pub(super) fn max(&self, policy: usize, limit: usize, user: usize) -> u64 {
        let own = self.overrides.iter().find(|own| (own.0, own.1, own.2) == (policy, limit, user));
        own.map_or(self.policies[policy].1[limit], |own| own.3)
    }
}

impl History {
    /// A number that another history has only if it is the same.
    pub(super) fn digest(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |text: String| {
            for byte in text.bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        for step in &self.steps {
            add(format!("{step:?}"));
        }
        for request in &self.requests {
            add(format!("{request:?}"));
        }
        hash
    }

    /// The last steps up to `end`, for people.
    pub(super) fn tail(&self, end: usize, count: usize) -> String {
        let end = end.min(self.steps.len());
        let shown = self.steps[end.saturating_sub(count)..end].iter();
        shown.map(|step| format!("{}\n", Shown { history: self, step })).collect()
    }
}

struct Shown<'a> {
    history: &'a History,
    step: &'a Step,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { at_millis, clock, event, .. } = self.step;
        write!(f, "{at_millis:>7} ms  clock {clock}  ")?;
        match event {
            Event::Asked(number) => {
                let Request { instance, what, .. } = &self.history.requests[*number];
                write!(f, "#{number} asks instance {instance}: {what:?}")
            }
            Event::Answered(number) => {
                let answer = self.history.requests[*number].answer.as_ref();
                match answer.map(|answer| &answer.outcome) {
                    Some(Outcome::Decided { decision, .. }) => {
                        write!(f, "#{number} is answered: {:?} ", decision.outcome)?;
                        write!(f, "at {} ", decision.decided_at.as_micros())?;
                        let used = decision.limits.iter().map(|limit| limit.standing.used);
                        write!(f, "used {:?}", used.collect::<Vec<_>>())
                    }
                    Some(Outcome::Replayed(_)) => write!(f, "#{number} is answered: a replay"),
                    other => write!(f, "#{number} is answered: {other:?}"),
                }
            }
            Event::Committed(commit) => {
                match commit.instance {
                    Some(instance) => write!(f, "instance {instance} commits")?,
                    None => write!(f, "somebody commits")?,
                }
                if let Some(basis) = &commit.basis {
                    let way = if basis.known { "by memory" } else { "behind locks" };
                    write!(f, " {way}, now {} epoch {}", basis.now, basis.epoch)?;
                }
                for change in &commit.counters {
                    write!(f, "; {} ", hex(&change.key))?;
                    write!(f, "{} → {}", state(&change.before), state(&change.after))?;
                }
                for refund in &commit.refunds {
                    write!(f, "; refund {refund:?}")?;
                }
                if !commit.records.is_empty() {
                    write!(f, "; {} recorded", commit.records.len())?;
                }
                if let Some(terms) = &commit.terms {
                    write!(f, "; {terms:?}")?;
                }
                Ok(())
            }
            Event::ClockSet => f.write_str("the clock was set"),
            Event::Note(note) => f.write_str(note),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn state(bytes: &Option<Vec<u8>>) -> String {
    match bytes {
        None => "gone".into(),
        Some(bytes) if bytes.is_empty() => "empty".into(),
        Some(bytes) => match tollgate::core::Reader(bytes).state() {
            Ok(state) => format!("{state:?}"),
            Err(_) => "unreadable".into(),
        },
    }
}
