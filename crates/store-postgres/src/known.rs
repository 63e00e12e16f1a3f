//! What a lane remembers of the states it last saw, so that a batch can be decided before the
//! database is asked and written in one round trip.
//!
//! Nothing is decided by this memory alone: the database compares every remembered state with its
//! own and writes nothing if one of them, the epoch or the clock is different. So it may be stale,
//! and may forget. It does not know refusals: see the shield.

use hashbrown::HashMap;
use tollgate_core::Instant;

use crate::batch::{Batch, Reading};
use crate::job::Request;

/// What one lane remembers, at most: so many keys, and keys and states of so many bytes.
const MAX_KEYS: usize = 32_768;
const MAX_BYTES: usize = 16 << 20;
/// Batches that go the long way after a wrong guess, at most.
const MAX_PENALTY: u32 = 64;

#[derive(Default)]
pub(crate) struct Known {
    states: HashMap<Vec<u8>, Vec<u8>, foldhash::fast::RandomState>,
    /// Of all keys and states.
    bytes: usize,
    /// Of the catalogue, as last seen.
    pub(crate) epoch: u64,
    /// What the lane last decided by. All that is remembered was counted by then, so nothing is
    /// decided on it at an earlier instant.
    pub(crate) latest: Instant,
    pub(crate) trust: Trust,
}

/// Whether guessing pays: where several instances share a key it costs a round trip and rarely does.
#[derive(Default)]
pub(crate) struct Trust {
    /// Batches still to go the long way, and how many it were last time.
    resting: u32,
    penalty: u32,
}

impl Trust {
    /// Whether this batch should be tried by memory.
    pub(crate) fn is_trusted(&mut self) -> bool {
        let trusted = self.resting == 0;
        self.resting = self.resting.saturating_sub(1);
        trusted
    }

    fn is_resting(&self) -> bool {
        self.resting > 0
    }

    pub(crate) fn was_right(&mut self) {
        self.penalty = 0;
    }

    pub(crate) fn was_wrong(&mut self) {
        self.penalty = (self.penalty * 2).clamp(1, MAX_PENALTY);
        self.resting = self.penalty;
    }
}

impl Known {
    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.states.get(key).map(Vec::as_slice)
    }

    /// Whether it is worth a try to decide this by memory.
    pub(crate) fn may_decide(&self, request: &Request) -> bool {
        !self.trust.is_resting() && request.keys().iter().all(|key| self.states.contains_key(*key))
    }

    /// The states that a batch leaves behind in the database.
    pub(crate) fn remember(&mut self, batch: &Batch<'_>, reading: Reading) {
        self.epoch = reading.epoch;
        self.latest = reading.now;
        for (key, state) in batch.left_behind() {
            match (self.states.get_mut(key), state) {
                (Some(known), Some(state)) => {
                    self.bytes = self.bytes + state.len() - known.len();
                    *known = state;
                }
                (Some(_), None) => {
                    let known = self.states.remove(key);
                    self.bytes -= key.len() + known.map_or(0, |state| state.len());
                }
                (None, Some(state)) => {
                    if self.states.len() >= MAX_KEYS || self.bytes >= MAX_BYTES {
                        self.states.clear();
                        self.bytes = 0;
                    }
                    self.bytes += key.len() + state.len();
                    self.states.insert(key.to_vec(), state);
                }
                (None, None) => {}
            }
        }
    }
}
