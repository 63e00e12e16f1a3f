//! What a store counts about itself, for metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Upper bounds of the batch-size buckets: powers of two.
pub const BATCH_SIZE_BOUNDS: [u64; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// Counters that only grow.
#[derive(Debug, Default)]
pub struct Stats {
    store_errors: AtomicU64,
    /// One more than there are bounds: the last has none.
    batches: [AtomicU64; BATCH_SIZE_BOUNDS.len() + 1],
    decisions_batched: AtomicU64,
    shielded: AtomicU64,
}

/// A reading of the store's own counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatsReading {
    pub keys: usize,
    /// Commits that failed.
    pub store_errors: u64,
    /// Commits by how many decisions they held: see [`BATCH_SIZE_BOUNDS`].
    pub batches: Vec<u64>,
    pub decisions_batched: u64,
    /// Refusals repeated from memory.
    pub shielded: u64,
}

impl Stats {
    pub fn store_error(&self) {
        self.store_errors.fetch_add(1, Relaxed);
    }

    pub fn batch(&self, decisions: u64) {
        if decisions > 0 {
            let bucket = BATCH_SIZE_BOUNDS.partition_point(|bound| *bound < decisions);
            self.batches[bucket].fetch_add(1, Relaxed);
            self.decisions_batched.fetch_add(decisions, Relaxed);
        }
    }

    pub fn shielded(&self) {
        self.shielded.fetch_add(1, Relaxed);
    }

    pub fn read(&self, keys: usize) -> StatsReading {
        StatsReading {
            keys,
            store_errors: self.store_errors.load(Relaxed),
            batches: self.batches.iter().map(|count| count.load(Relaxed)).collect(),
            decisions_batched: self.decisions_batched.load(Relaxed),
            shielded: self.shielded.load(Relaxed),
        }
    }
}
