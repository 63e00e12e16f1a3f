//! Callers that ask a server all the time and write every answer down, with its moment.
//!
//! Each caller has one connection at a time, as a real client would: it asks, waits for the answer, rests for
//! some milliseconds, asks again. Most check; some ask for slots, each event again and again until it
//! has its slot. So what is measured is what callers meet, not what the server could do.
//!
//! Deliberately absent: retries of checks. A check that got no answer may have been counted, and the
//! judge has to live with that as everybody has.

pub(super) mod caller;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use caller::Caller;

use crate::http::Decided;

/// Subjects that checks are for.
pub(super) const USERS: u32 = 8;
/// Of so many callers, one asks for slots.
const CALLERS_PER_SLOT_CALLER: u32 = 8;

pub(super) const CHECKED: &str = "load";
pub(super) const SCHEDULED: &str = "slots";
pub(super) const SLOTS_PER_SECOND: usize = 50;
/// Its keys are all different: a file that counts them grows.
const GROWING: &str = "visitors";

/// What is judged. The first two refuse, also on a slow machine: only full windows can have one too many. The
/// third refuses nothing and counts everything, so that nothing can be forgotten unnoticed. It is sliding because
/// its state then knows the latest instant it saw: on every store the order of decisions is the order of their
/// instants.
pub(super) const CHECKED_LIMITS: &str = r#"limits = [
    { name = "window", max = 300, per = "1s" },
    { name = "user",   max = 100, per = "2s", algorithm = "sliding", by = ["user"] },
    { name = "all",    max = 9000000000, per = "3650d", algorithm = "sliding" },
]"#;

/// What the callers ask under, as a part of the server's configuration.
pub(super) fn policies(durability: &str) -> String {
    format!(
        r#"
[policy.{CHECKED}]
durability = "{durability}"
{CHECKED_LIMITS}

[policy.{SCHEDULED}]
limits = [{{ name = "window", max = {SLOTS_PER_SECOND}, per = "1s" }}]

[policy.{GROWING}]
durability = "{durability}"
limits = [{{ name = "visitor", max = 5, per = "1d", by = ["visitor"] }}]
"#
    )
}

/// One request and what came of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Since the load began.
    pub(super) asked_at: Duration,
    pub(super) took: Duration,
    /// Of checks under the judged policy.
    pub(super) user: Option<u32>,
    pub(super) what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// A check of the judged policy was answered.
    Decided(Decided),
    /// Another request was answered: a slot was given, a visitor counted.
    Answered,
    Failed(Trouble),
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Trouble {
    /// Nobody listens: nothing was asked.
    Refused,
    /// The connection broke before the answer.
    Broken,
    /// Nothing came for [`caller::PATIENCE`].
    Silence,
    Status(u16),
    /// An answer that belongs to another request, or to none.
    Misdelivered,
}

/// An event and the slot it was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Given {
    pub(super) event: String,
    pub(super) scheduled_time: String,
}

/// Everything the callers wrote down.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) records: Vec<Record>,
    pub(super) slots: Vec<Given>,
    /// Events that were asked for and have no answer: they may have a slot.
    pub(super) slots_in_doubt: u64,
    /// When it began, by the clock of the wall: that of all decisions.
    pub(super) began_at: jiff::Timestamp,
}

/// Who asks, and how often.
#[derive(Clone, Debug)]
pub(super) struct Crowd {
    pub(super) callers: u32,
    pub(super) rest: Duration,
    /// Callers that check for somebody new each time.
    pub(super) visitors: u32,
}

/// The callers at work.
#[derive(Debug)]
pub(super) struct Load {
    shared: Arc<Shared>,
    callers: JoinSet<Log>,
}

#[derive(Debug)]
struct Shared {
    address: String,
    began: Instant,
    began_at: jiff::Timestamp,
    /// All events ask for this time, so that asking again is the same question.
    requested_time: String,
    rest: Duration,
    stop: AtomicBool,
    good: AtomicU64,
}

impl Load {
    pub(super) fn start(address: &str, crowd: &Crowd) -> Self {
        let (began, began_at) = (Instant::now(), jiff::Timestamp::now());
        let shared = Arc::new(Shared {
            address: address.to_owned(),
            began,
            began_at,
            requested_time: began_at.to_string(),
            rest: crowd.rest,
            stop: AtomicBool::new(false),
            good: AtomicU64::new(0),
        });
        let mut callers = JoinSet::new();
        for number in 0..crowd.callers + crowd.visitors {
            let caller = Caller::new(shared.clone(), number);
            if number >= crowd.callers {
                callers.spawn(caller.visit());
            } else if number.is_multiple_of(CALLERS_PER_SLOT_CALLER) {
                callers.spawn(caller.schedule());
            } else {
                callers.spawn(caller.check());
            }
        }
        Self { shared, callers }
    }

    /// Time since it began: the measure of all records.
    pub(super) fn now(&self) -> Duration {
        self.shared.began.elapsed()
    }

    /// Answers so far that were no errors.
    pub(super) fn good(&self) -> u64 {
        self.shared.good.load(Ordering::Relaxed)
    }

    pub(super) fn requested_time(&self) -> &str {
        &self.shared.requested_time
    }

    /// Lets everybody end what they are at.
    pub(super) async fn stop(self) -> Log {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut log = Log { began_at: self.shared.began_at, ..Log::default() };
        for part in self.callers.join_all().await {
            log.records.extend(part.records);
            log.slots.extend(part.slots);
            log.slots_in_doubt += part.slots_in_doubt;
        }
        log.records.sort_by_key(|record| record.asked_at);
        log
    }
}

impl Log {
    /// A moment of the load by the clock of the wall, in microseconds.
    pub(super) fn wall_micros(&self, since_it_began: Duration) -> i64 {
        let passed = i64::try_from(since_it_began.as_micros()).expect("a load lasts for seconds");
        self.began_at.as_microsecond() + passed
    }
}

impl Record {
    pub(super) fn answered_at(&self) -> Duration {
        self.asked_at + self.took
    }

    pub(super) fn trouble(&self) -> Option<Trouble> {
        match self.what {
            What::Failed(trouble) => Some(trouble),
            What::Decided(_) | What::Answered => None,
        }
    }
}
