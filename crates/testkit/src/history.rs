//! Was there ever one too many? The log of all answers of all instances, replayed and judged.
//!
//! The log holds every answer with its instant: what was allowed, what was refused, what was given
//! back, and what may have been counted although its answer was lost. For each key it is replayed
//! in order of time through two models that know nothing of the store or of `tollgate-core`:
//!
//! - the **least** that the store must have counted: every allowed answer, less what was given back,
//!   from the earliest moment at which that can have happened;
//! - the **most** it can have counted: every allowed answer, less what was given back, from when that was
//!   known to be done, and everything in doubt, for as long as it can count.
//!
//! Then every answer is held against both:
//!
//! - *one too many*: allowed, and the least is above the `max` of the version that decided it. For
//!   `fixed` that is the aligned window, for `sliding` any interval of the window's length (checked
//!   at each of its last spends, which is the same), for `bucket` burst + rate × interval for any
//!   interval (the running form of it: an instant that every spend pushes on);
//! - *forgotten*: the answer says that less is used than the least: something answered was lost. A
//!   lost update shows here at once, long before it fills a window;
//! - *invented*: it says that more is used than the most;
//! - *refused for nothing*: refused, although the most leaves room for it. So where nothing is in
//!   doubt and nothing is being given back, exactly as much passes as fits, in every window;
//! - *by the wrong version*: it was asked after a newer version was known to be in force, or decided
//!   before its own was made. Only a refusal from memory may be by the version of a second ago.
//!
//! How tight it is: to the unit where nothing was given back and nothing is in doubt, also across
//! changes of `max`, because each answer is judged by its own version's and the version by the log of
//! changes. A refund makes the least smaller by its cost from the moment it was *sent*, some
//! milliseconds before it was done, and the most from when its answer was *there*; for whoever is refused
//! from memory, a second later. A bucket may give back less than was spent, so there the most stays. What
//! is in doubt makes the most larger from when it was asked for until it has left its window, counted
//! from when nobody waited for it any more. A bucket's arithmetic is rounded in the store's favour, by less
//! than a millionth of a unit.
//!
//! What is allowed on remembered states is stamped a moment before it is counted. Whoever spends
//! after it knows of it all the same; whoever is refused or looks in that moment need not. So a
//! spend is held against those only from when its caller was told.
//!
//! Deliberately absent: any order but that of `decided_at`. Two batches that hold one key never
//! share a microsecond, and within a batch the order does not matter for these sums. A database
//! whose clock steps back during a history would be accused wrongly.

mod key;
pub(crate) mod standing;
mod units;
mod versions;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use key::KeyHistory;
use standing::Doubt;
pub use versions::{Version, Versions};

/// What is decided on remembered states is stamped so much before it is counted, at most.
const BEHIND_MICROS: i64 = 250_000;
/// A batch goes on without a caller whose deadline has passed. It has half a deadline to get its locks,
/// then a whole one to get those it can, and the clock is read behind them.
const LATE_DEADLINES: u32 = 2;

/// How one limit counts; all spans in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    Fixed {
        per: i64,
    },
    Sliding {
        per: i64,
        resolution: i64,
    },
    Bucket {
        per: i64,
    },
    /// With a burst of its own.
    UnitBucket {
        per: i64,
    },
}

/// What one limit lets through in one version of its policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    pub max: u64,
    /// What `used` is measured against: a bucket's burst, everybody else's `max`.
    pub holds: u64,
}

/// One answer out of the log.
#[derive(Clone, Debug)]
pub struct Answer<'a> {
    pub outcome: Outcome,
    pub asked_at: i64,
    pub decided_at: i64,
    /// When whoever asked had the answer: by then at the latest it was counted.
    pub told_at: i64,
    pub cost: u32,
    /// Of the policy; `None` where the answer does not tell: then its `max`es do.
    pub version: Option<u64>,
    /// One per limit of the policy, in its order.
    pub limits: &'a [Seen],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Allowed {
        given_back: Option<GivenBack>,
    },
    /// `from_memory`: it may repeat what the store said up to a second ago.
    Refused {
        from_memory: bool,
    },
    /// A peek: only how it stands.
    Looked,
}

/// When a spend was given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GivenBack {
    /// Not before it was asked for.
    pub from: i64,
    /// By when whoever asked knew that it was done; `None`: it may not have been.
    pub by: Option<i64>,
}

/// What an answer says of one limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// A number for what it counts by; the same value, the same number.
    pub key: u32,
    pub max: u64,
    pub used: u64,
    /// Whether it is this limit that refuses.
    pub refuses: bool,
}

/// Everything that was said under one policy.
#[derive(Clone, Debug)]
pub struct History {
    policy: String,
    rules: Vec<Rule>,
    versions: Versions,
    keys: BTreeMap<(usize, u32), KeyHistory>,
    faults: Vec<Fault>,
}

/// What was found in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Units, less what was given back.
    pub units: u64,
    pub refusals: u64,
}

/// An answer that cannot be right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    pub policy: String,
    /// Its position in the policy, and the number of the key.
    pub limit: usize,
    pub key: u32,
    pub decided_at: i64,
    pub wrong: Wrong,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    OneTooMany {
        held: u64,
        max: u64,
    },
    Forgotten {
        held: u64,
        used: u64,
    },
    Invented {
        held: u64,
        used: u64,
    },
    RefusedForNothing {
        held: u64,
        cost: u64,
        max: u64,
    },
    WrongVersion {
        version: Option<u64>,
    },
    /// The version says another `max` than the answer.
    WrongMax {
        version: u64,
        says: u64,
    },
}

impl History {
    pub fn new(policy: impl Into<String>, rules: Vec<Rule>, versions: Versions) -> Self {
        Self { policy: policy.into(), rules, versions, keys: BTreeMap::new(), faults: Vec::new() }
    }

    /// Adds an answer, in any order.
    pub fn add(&mut self, answer: &Answer<'_>) {
        assert_eq!(answer.limits.len(), self.rules.len(), "one report per limit of the policy");
        let fault = |limit: usize, wrong| Fault {
            policy: self.policy.clone(),
            limit,
            key: answer.limits.get(limit).map_or(0, |seen| seen.key),
            decided_at: answer.decided_at,
            wrong,
        };
        let Some(version) = self.versions.of(answer) else {
            let wrong = Wrong::WrongVersion { version: answer.version };
            return self.faults.push(fault(0, wrong));
        };
        for (limit, (seen, terms)) in answer.limits.iter().zip(&version.terms).enumerate() {
            if seen.max != terms.holds {
                let wrong = Wrong::WrongMax { version: version.number, says: seen.max };
                self.faults.push(fault(limit, wrong));
                continue;
            }
            let rule = self.rules[limit];
            let key = self.keys.entry((limit, seen.key));
            key.or_insert_with(|| KeyHistory::new(rule)).add(answer, seen, *terms);
        }
    }

    /// A request whose answer was lost: it may have been counted under these keys, one per limit, at one
    /// instant of that time.
    pub fn doubt(&mut self, cost: u32, keys: &[u32], when: &RangeInclusive<i64>) {
        let (units, from, until) = (u64::from(cost), *when.start(), *when.end());
        for (limit, key) in keys.iter().enumerate() {
            let rule = self.rules[limit];
            let key = self.keys.entry((limit, *key)).or_insert_with(|| KeyHistory::new(rule));
            key.doubt(Doubt { units, from, until });
        }
    }

    /// Replays everything. The tally of each key by (limit, key), and all that is wrong.
    pub fn judge(self) -> (BTreeMap<(usize, u32), Tally>, Vec<Fault>) {
        let Self { policy, keys, mut faults, .. } = self;
        let mut tallies = BTreeMap::new();
        for ((limit, number), key) in keys {
            let tally = key.judge(|decided_at, wrong| {
                faults.push(Fault {
                    policy: policy.clone(),
                    limit,
                    key: number,
                    decided_at,
                    wrong,
                });
            });
            tallies.insert((limit, number), tally);
        }
        (tallies, faults)
    }
}

/// When something may have been counted that was asked for then and given up then, on a store with that
/// deadline.
pub fn when_counted((asked_at, gave_up_at): (i64, i64), deadline: Duration) -> RangeInclusive<i64> {
    let late = (deadline * LATE_DEADLINES).as_micros();
    let late = i64::try_from(late).expect("a deadline is a minute at most");
    asked_at - BEHIND_MICROS..=gave_up_at + late
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, limit, key, decided_at, wrong } = self;
        let at = tollgate::Instant::from_micros(*decided_at);
        write!(f, "{policy}, limit {limit}, key {key}, {at}: ")?;
        match wrong {
            Wrong::OneTooMany { held, max } => write!(f, "{held} passed where {max} may"),
            Wrong::Forgotten { held, used } => {
                write!(f, "{held} were answered, and only {used} are counted")
            }
            Wrong::Invented { held, used } => {
                write!(f, "{used} are counted, and at most {held} were asked for")
            }
            Wrong::RefusedForNothing { held, cost, max } => {
                write!(f, "{cost} was refused with at most {held} of {max} used")
            }
            Wrong::WrongVersion { version: Some(version) } => {
                write!(f, "version {version} was not in force")
            }
            Wrong::WrongVersion { version: None } => f.write_str("no version in force says so"),
            Wrong::WrongMax { version, says } => {
                write!(f, "max is said to be {says}, which version {version} does not say")
            }
        }
    }
}
