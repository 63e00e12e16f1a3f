//! The queue between decisions and the file.
//!
//! A decision appends all its changes as one item while its shards are locked, so the queue is in
//! the order of decisions and every cut of it is a moment that really was. The keeper takes
//! everything there is and commits it at once.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant as Moment};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use tollgate_core::store::{Durability, Key, StoreError};
use tollgate_core::{State, Writer};

use crate::error::stopped;
use crate::keeper::Job;
use crate::shards::KeyedState;

/// How long changes that nobody waits for are gathered before they are committed.
const GATHER: Duration = Duration::from_millis(50);
/// What a crash may forget. Once the oldest change is older than this, answers wait for the file.
/// By the clock that does not step: the wall clock may.
const MAX_LOSS: Duration = Duration::from_millis(100);

const REMOVED: u8 = 0;
const CHANGED: u8 = 1;
const LENGTH_BYTES: usize = 4;

pub(crate) type Waiter = oneshot::Sender<Result<(), StoreError>>;
/// Resolves when the change is on disk.
pub(crate) type Committed = oneshot::Receiver<Result<(), StoreError>>;

pub(crate) struct Journal {
    queue: Mutex<Queue>,
    work: Condvar,
    /// Mirrors "closing, or has a failure", so that a check need not take the lock to ask.
    failing: AtomicBool,
    /// False for `memory:`: then counts are never written.
    keeps_counts: bool,
    /// Sequence of decisions where the queue does not give one.
    unqueued_sequence: AtomicU64,
}

#[derive(Default)]
struct Queue {
    changes: Vec<u8>,
    /// Of the last decision appended.
    sequence: u64,
    /// When the oldest change in `changes` was appended.
    oldest: Option<Moment>,
    /// The same for what the keeper is committing now.
    oldest_in_flight: Option<Moment>,
    waiters: Vec<Waiter>,
    jobs: Vec<Job>,
    /// No new work is taken.
    closing: bool,
    /// The last cut was made: whatever comes now reaches the file no more.
    closed: bool,
    /// Set while the file cannot be written.
    failure: Option<StoreError>,
}

/// Whether there will be another cut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Ordinary,
    Last,
}

/// What the keeper woke up for.
pub(crate) enum Work {
    Jobs(Vec<Job>),
    /// Nothing to do but housekeeping.
    Idle,
    Close(Vec<Job>),
}

/// Everything decided up to one moment and not yet committed.
pub(crate) struct Cut {
    pub(crate) changes: Vec<u8>,
    pub(crate) sequence: u64,
    pub(crate) waiters: Vec<Waiter>,
}

impl Journal {
    pub(crate) fn new(keeps_counts: bool) -> Self {
        Self {
            queue: Mutex::default(),
            work: Condvar::new(),
            failing: AtomicBool::new(false),
            keeps_counts,
            unqueued_sequence: AtomicU64::new(0),
        }
    }

    pub(crate) fn keeps_counts(&self) -> bool {
        self.keeps_counts
    }

    /// An error once closed, and while the last commit failed and none has succeeded since.
    #[inline]
    pub(crate) fn healthy(&self) -> Result<(), StoreError> {
        if !self.failing.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.failure()
    }

    #[cold]
    fn failure(&self) -> Result<(), StoreError> {
        let queue = self.queue.lock();
        if queue.closing { Err(stopped()) } else { queue.failure.clone().map_or(Ok(()), Err) }
    }

    /// Appends one decision. Call it with the shards of `states` locked.
    pub(crate) fn append(
        &self,
        states: &[KeyedState<'_>],
        durability: Durability,
    ) -> (u64, Option<Committed>) {
        if !self.keeps_counts {
            return (self.unqueued_sequence.fetch_add(1, Ordering::Relaxed) + 1, None);
        }
        SCRATCH.with_borrow_mut(|encoded| {
            // Before the lock that all decisions share.
            encoded.clear();
            for (key, state) in states {
                encode_change(encoded, *key, state);
            }
            self.append_encoded(encoded, durability)
        })
    }

    fn append_encoded(&self, encoded: &[u8], durability: Durability) -> (u64, Option<Committed>) {
        let now = Moment::now();
        let mut queue = self.queue.lock();
        queue.sequence += 1;
        if queue.closed {
            // Nobody will commit it: the waiter's other end is gone, and its caller told so.
            return (queue.sequence, Some(oneshot::channel().1));
        }
        queue.changes.extend_from_slice(encoded);
        let first = queue.oldest.is_none();
        let oldest = *queue.oldest.get_or_insert(now);
        let oldest = queue.oldest_in_flight.unwrap_or(oldest);
        let late = now.duration_since(oldest) > MAX_LOSS;
        let committed = (durability == Durability::Sync || late).then(|| {
            let (waiter, committed) = oneshot::channel();
            queue.waiters.push(waiter);
            committed
        });
        if first || committed.is_some() {
            self.work.notify_one();
        }
        (queue.sequence, committed)
    }

    /// Appends the removal of a key. Call it with the key's shard locked.
    pub(crate) fn append_removal(&self, key: Key<'_>) {
        if self.keeps_counts {
            let mut queue = self.queue.lock();
            encode_key(&mut queue.changes, key, REMOVED);
            if queue.oldest.is_none() {
                queue.oldest = Some(Moment::now());
                self.work.notify_one();
            }
        }
    }

    pub(crate) fn submit(&self, job: Job) {
        let mut queue = self.queue.lock();
        if !queue.closing {
            queue.jobs.push(job);
            self.work.notify_one();
        }
    }

    pub(crate) fn close(&self) {
        self.queue.lock().closing = true;
        self.failing.store(true, Ordering::Relaxed);
        self.work.notify_one();
    }

    /// The keeper is gone: everybody who waits for it is told so, and nobody new is let in.
    pub(crate) fn abandon(&self) {
        let mut queue = self.queue.lock();
        queue.closing = true;
        queue.closed = true;
        let left = (std::mem::take(&mut queue.jobs), std::mem::take(&mut queue.waiters));
        self.failing.store(true, Ordering::Relaxed);
        drop(queue);
        // Dropping a reply is what its caller hears as an error.
        drop(left);
    }

    /// Sleeps until there is something to commit: at once for whoever waits, after `GATHER` for
    /// the rest, and no longer than `idle`.
    pub(crate) fn next_work(&self, idle: Duration) -> Work {
        let mut queue = self.queue.lock();
        if !queue.is_urgent() {
            if queue.changes.is_empty() {
                self.work.wait_for(&mut queue, idle);
            }
            // A failing file is retried at this pace too.
            if !queue.is_urgent() && (!queue.changes.is_empty() || queue.failure.is_some()) {
                self.work.wait_for(&mut queue, GATHER);
            }
        }
        let jobs = std::mem::take(&mut queue.jobs);
        if queue.closing {
            Work::Close(jobs)
        } else if jobs.is_empty() && queue.changes.is_empty() && queue.failure.is_none() {
            Work::Idle
        } else {
            Work::Jobs(jobs)
        }
    }

    /// Takes everything decided so far.
    pub(crate) fn cut(&self, turn: Turn) -> Cut {
        let mut queue = self.queue.lock();
        queue.closed = turn == Turn::Last;
        let oldest = queue.oldest.take();
        queue.oldest_in_flight = queue.oldest_in_flight.or(oldest);
        Cut {
            changes: std::mem::take(&mut queue.changes),
            sequence: queue.sequence,
            waiters: std::mem::take(&mut queue.waiters),
        }
    }

    /// Says how the commit of all cuts so far went. After a failure the counts in memory are
    /// ahead of the file; the keeper holds on to them and tries again.
    pub(crate) fn settle(&self, result: &Result<(), StoreError>) {
        let mut queue = self.queue.lock();
        match result {
            Ok(()) => {
                queue.oldest_in_flight = None;
                queue.failure = None;
            }
            Err(error) => queue.failure = Some(error.clone()),
        }
        self.failing.store(queue.closing || queue.failure.is_some(), Ordering::Relaxed);
    }
}

impl Queue {
    fn is_urgent(&self) -> bool {
        !self.jobs.is_empty() || !self.waiters.is_empty() || self.closing
    }
}

/// One key of a cut: its encoded state, or `None` if it was removed.
pub(crate) type Change<'a> = (&'a [u8], Option<&'a [u8]>);

thread_local! {
    /// Room for the changes of one decision.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Key and kind; behind a changed one its state, with room for the length that is known only then.
fn encode_change(bytes: &mut Vec<u8>, key: Key<'_>, state: &State) {
    encode_key(bytes, key, CHANGED);
    let length_at = bytes.len();
    bytes.extend_from_slice(&[0; LENGTH_BYTES]);
    Writer(bytes).state(state);
    let length = (bytes.len() - length_at - LENGTH_BYTES) as u32;
    bytes[length_at..][..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
}

fn encode_key(bytes: &mut Vec<u8>, key: Key<'_>, kind: u8) {
    let limit = key.limit.to_le_bytes();
    bytes.extend_from_slice(&((limit.len() + key.values.len()) as u32).to_le_bytes());
    bytes.extend_from_slice(&limit);
    bytes.extend_from_slice(key.values);
    bytes.push(kind);
}

/// The changes of a cut that [`is_whole`], in the order of decisions.
pub(crate) fn changes(mut bytes: &[u8]) -> impl Iterator<Item = Change<'_>> {
    std::iter::from_fn(move || take_change(&mut bytes))
}

/// Whether bytes are a cut to the last one.
pub(crate) fn is_whole(mut bytes: &[u8]) -> bool {
    while take_change(&mut bytes).is_some() {}
    bytes.is_empty()
}

/// `None` at the end, and at what is no change: that is left in `bytes`.
fn take_change<'a>(bytes: &mut &'a [u8]) -> Option<Change<'a>> {
    let mut rest = *bytes;
    let key = take_sized(&mut rest)?;
    let (kind, behind) = rest.split_first()?;
    rest = behind;
    let state = match *kind {
        CHANGED => Some(take_sized(&mut rest)?),
        REMOVED => None,
        _ => return None,
    };
    *bytes = rest;
    Some((key, state))
}

fn take_sized<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let (taken, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn a_removal_wakes_the_keeper() {
        let journal = Arc::new(Journal::new(true));
        let (woken, wakes) = mpsc::channel();
        let keeper = journal.clone();
        std::thread::spawn(move || {
            let work = keeper.next_work(Duration::from_secs(600));
            woken.send(matches!(work, Work::Jobs(_))).unwrap();
        });
        // If the keeper does not sleep by then, it finds the removal all the same.
        std::thread::sleep(Duration::from_millis(100));
        journal.append_removal(Key { limit: 1, values: b"a" });
        assert_eq!(wakes.recv_timeout(Duration::from_secs(20)), Ok(true));
    }
}
