//! Repeats refusals from memory, so that a flood of them does not reach the database.
//!
//! What is remembered is the state of each key of a refused request. Asked again within a second,
//! the core decides on those states at the instant it must be by now: refused, and that is the
//! answer; allowed, and the database is asked. A count only grows until it expires, so this refuses
//! nothing that the database would allow, but for what another instance's refund has freed less
//! than a second ago. What this instance changes itself is forgotten here at once.
//! It never allows anything.

use std::hash::{BuildHasher, Hash, Hasher};

use hashbrown::{Equivalent, HashMap};
use parking_lot::RwLock;
use smallvec::SmallVec;
use tollgate_core::store::{Ask, Key};
use tollgate_core::{Decision, INLINE_LIMITS, Instant, Intent, Outcome, State, States, decide};

const SHARDS: usize = 16;
const MAX_KEYS_PER_SHARD: usize = 4096;
const MAX_AGE_MICROS: i64 = 1_000_000;

#[derive(Debug, Default)]
pub(crate) struct Shield {
    shards: [RwLock<Remembering>; SHARDS],
    hasher: foldhash::fast::RandomState,
}

type Remembering = HashMap<KeptKey, Remembered, foldhash::fast::RandomState>;

/// A key of its own, found by one that is borrowed: both hash alike.
#[derive(PartialEq, Eq, Debug)]
struct KeptKey {
    limit: u64,
    values: Box<[u8]>,
}

impl KeptKey {
    fn lend(&self) -> Key<'_> {
        Key { limit: self.limit, values: &self.values }
    }
}

impl Hash for KeptKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.lend().hash(state);
    }
}

impl Equivalent<KeptKey> for Key<'_> {
    fn equivalent(&self, kept: &KeptKey) -> bool {
        *self == kept.lend()
    }
}

#[derive(Clone, Debug)]
struct Remembered {
    state: Option<State>,
    sighting: Sighting,
}

/// When a state was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    /// What the database's clock showed.
    pub(crate) clock: Instant,
    /// On the steady clock, from before the request was sent: so it is never thought younger than
    /// it is.
    pub(crate) sent_micros: i64,
}

impl Sighting {
    fn is_fresh(&self, steady_micros: i64) -> bool {
        (0..MAX_AGE_MICROS).contains(&steady_micros.saturating_sub(self.sent_micros))
    }
}

impl Shield {
    pub(crate) fn remember(&self, key: Key<'_>, state: Option<&State>, sighting: Sighting) {
        let mut shard = self.shard(key).write();
        if shard.len() >= MAX_KEYS_PER_SHARD && !shard.contains_key(&key) {
            shard.retain(|_, remembered| remembered.sighting.is_fresh(sighting.sent_micros));
            if shard.len() >= MAX_KEYS_PER_SHARD {
                return;
            }
        }
        let kept = KeptKey { limit: key.limit, values: key.values.into() };
        shard.insert(kept, Remembered { state: state.cloned(), sighting });
    }

    /// What is counted under this key is another by now.
    pub(crate) fn forget(&self, key: Key<'_>) {
        let shard = self.shard(key);
        // Nearly always there is nothing, and nobody need wait for that.
        if shard.read().contains_key(&key) {
            shard.write().remove(&key);
        }
    }

    /// The refusal that the database would give now, if enough is remembered to know. Nothing is
    /// decided before `swept_at`: until the clock is there, time stands still.
    pub(crate) fn repeat(
        &self,
        ask: &Ask<'_>,
        steady_micros: i64,
        swept_at: Instant,
    ) -> Option<Decision> {
        let mut states = Copies(SmallVec::new());
        let mut now = swept_at;
        for keyed in ask.claims {
            let shard = self.shard(keyed.key).read();
            let found = shard.get(&keyed.key)?;
            let Sighting { clock, sent_micros } = found.sighting;
            if !found.sighting.is_fresh(steady_micros) {
                return None;
            }
            now = now.max(clock.plus_micros(steady_micros - sent_micros));
            states.0.push(found.state.clone());
        }
        let decision = decide(ask.claims, &mut states, Intent::Peek, ask.cost, now);
        matches!(decision.outcome, Outcome::Refused { .. }).then_some(decision)
    }

    fn shard(&self, key: Key<'_>) -> &RwLock<Remembering> {
        let hash = self.hasher.hash_one(key);
        &self.shards[usize::try_from(hash >> 32).expect("32 bits") % SHARDS]
    }
}

struct Copies(SmallVec<[Option<State>; INLINE_LIMITS]>);

impl States for Copies {
    fn get(&self, position: usize) -> Option<&State> {
        self.0[position].as_ref()
    }

    fn get_or_insert_with(&mut self, _: usize, _: impl FnOnce() -> State) -> &mut State {
        unreachable!("a peek changes no state")
    }
}
