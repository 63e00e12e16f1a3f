//! Where the check path leaves its refusals: one lock that nobody waits for, a look-up, a sum.
//!
//! Each thread has a shard of its own as far as there are enough; only the collector, which takes
//! everything out now and then, shares it. A refusal that finds its shard taken tries the next one,
//! and is then let go and counted as unrecorded: a check never waits here.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use tollgate_core::{Decision, Instant};

use crate::compiled::{Compiled, Keys};
use crate::offenders::shown;
use crate::offenders::sketch::{Sketch, Tally};

const SHARDS: usize = 16;
/// Subjects of one limit in one shard between two collections, and of all its limits together.
const SUBJECTS_PER_LIMIT: usize = 1024;
const SUBJECTS_PER_SHARD: usize = 4096;
/// Policies in one shard between two collections.
const POLICIES_PER_SHARD: usize = 256;

/// Refusals since they were last collected.
#[derive(Debug)]
pub(crate) struct Intake {
    shards: [Mutex<Shard>; SHARDS],
    unrecorded: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    /// By the address of the policy, which is held here.
    policies: HashMap<usize, PolicyRefusals, foldhash::fast::RandomState>,
    subjects: usize,
}

/// The refusals of one policy as it was then.
#[derive(Debug)]
pub(crate) struct PolicyRefusals {
    pub(crate) policy: Arc<Compiled>,
    /// Checks refused, by whatever limits.
    pub(crate) all: Tally,
    /// By the names of subjects, in the order of the policy's limits.
    pub(crate) limits: Vec<Sketch<Box<[u8]>>>,
}

impl Intake {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), unrecorded: AtomicU64::new(0) }
    }

    /// Records a check that was not allowed under each limit that refused it.
    pub(crate) fn record(&self, policy: &Arc<Compiled>, keys: &Keys<'_>, decision: &Decision) {
        let mine = shard_of_this_thread();
        for position in [mine, (mine + 1) % SHARDS] {
            let mut shard = match self.shards[position].try_lock() {
                Ok(shard) => shard,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            if shard.record(policy, keys, decision) {
                return;
            }
            break;
        }
        self.unrecorded.fetch_add(1, Relaxed);
    }

    /// Takes everything out.
    pub(crate) fn take(&self) -> Vec<PolicyRefusals> {
        let shards = self.shards.iter();
        let taken = shards.map(|shard| {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *shard)
        });
        taken.flat_map(|shard| shard.policies.into_values()).collect()
    }

    /// Refused checks that left no trace here.
    pub(crate) fn unrecorded(&self) -> u64 {
        self.unrecorded.load(Relaxed)
    }

    pub(crate) fn lose(&self, refused: u64) {
        self.unrecorded.fetch_add(refused, Relaxed);
    }
}

impl Shard {
    /// Whether there was room for the policy.
    fn record(&mut self, policy: &Arc<Compiled>, keys: &Keys<'_>, decision: &Decision) -> bool {
        let address = Arc::as_ptr(policy).addr();
        let at = decision.decided_at;
        if !self.policies.contains_key(&address) {
            if self.policies.len() >= POLICIES_PER_SHARD {
                return false;
            }
            self.policies.insert(address, PolicyRefusals::new(policy.clone(), at));
        }
        let Some(refusals) = self.policies.get_mut(&address) else { return false };
        refusals.all.add(Tally::one(at));
        let refusing = decision.limits.iter().enumerate().filter(|(_, report)| report.refuses());
        for (position, _) in refusing {
            let sketch = &mut refusals.limits[position];
            shown::with_name(keys.get(position).values, |name| {
                if sketch.add_known(name, Tally::one(at)) {
                    return;
                }
                if self.subjects >= SUBJECTS_PER_SHARD {
                    sketch.miss(1);
                    return;
                }
                let before = sketch.len();
                sketch.add(name.into(), Tally::one(at));
                self.subjects = (self.subjects + sketch.len()).saturating_sub(before);
            });
        }
        true
    }
}

impl PolicyRefusals {
    fn new(policy: Arc<Compiled>, at: Instant) -> Self {
        let limits = policy.policy().limits().len();
        let limits = (0..limits).map(|_| Sketch::new(SUBJECTS_PER_LIMIT)).collect();
        Self { policy, all: Tally { refused: 0, ..Tally::one(at) }, limits }
    }
}

/// Threads take shards in turn.
fn shard_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<Option<usize>> = const { Cell::new(None) };
    }
    MINE.with(|mine| {
        mine.get().unwrap_or_else(|| {
            let taken = NEXT.fetch_add(1, Relaxed) % SHARDS;
            mine.set(Some(taken));
            taken
        })
    })
}
