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
use tollgate_core::{
    Counted, Decision, INLINE_LIMITS, Instant, Intent, Outcome, State, States, decide,
};

const SHARDS: usize = 16;
/// What a shard remembers, at most: so many keys, and so many bytes of values and buckets.
const MAX_KEYS_PER_SHARD: usize = 4096;
const MAX_BYTES_PER_SHARD: usize = 1 << 20;
const MAX_AGE_MICROS: i64 = 1_000_000;

#[derive(Debug, Default)]
pub(crate) struct Shield {
    shards: [RwLock<Remembering>; SHARDS],
    hasher: foldhash::fast::RandomState,
}

#[derive(Debug, Default)]
struct Remembering {
    states: HashMap<KeptKey, Remembered, foldhash::fast::RandomState>,
    bytes: usize,
}

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
    bytes: usize,
}

impl Remembering {
    fn remove(&mut self, key: Key<'_>) {
        let gone = self.states.remove(&key);
        self.bytes -= gone.map_or(0, |remembered| remembered.bytes);
    }

    /// Nothing is remembered for as long as the shard is full of what is fresh.
    fn insert(&mut self, key: Key<'_>, remembered: Remembered) {
        self.remove(key);
        let fits = |shard: &Self| {
            shard.states.len() < MAX_KEYS_PER_SHARD
                && shard.bytes + remembered.bytes <= MAX_BYTES_PER_SHARD
        };
        if !fits(self) {
            let now_micros = remembered.sighting.sent_micros;
            let is_fresh = |remembered: &Remembered| remembered.sighting.is_fresh(now_micros);
            self.states.retain(|_, remembered| is_fresh(remembered));
            self.bytes = self.states.values().map(|remembered| remembered.bytes).sum();
        }
        if fits(self) {
            self.bytes += remembered.bytes;
            let kept = KeptKey { limit: key.limit, values: key.values.into() };
            self.states.insert(kept, remembered);
        }
    }
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
        let buckets = match state {
            Some(State::Sliding(sliding)) => sliding.bucket_count(),
            _ => 0,
        };
        let bytes = key.values.len() + buckets * size_of::<Counted>();
        let remembered = Remembered { state: state.cloned(), sighting, bytes };
        self.shard(key).write().insert(key, remembered);
    }

    /// What is counted under this key is another by now.
    pub(crate) fn forget(&self, key: Key<'_>) {
        let shard = self.shard(key);
        // Nearly always there is nothing, and nobody need wait for that.
        if shard.read().states.contains_key(&key) {
            shard.write().remove(key);
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
            let found = shard.states.get(&keyed.key)?;
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

#[cfg(test)]
mod tests {
    use tollgate_core::{Sliding, Span};

    use super::*;

    fn sliding(buckets: i64) -> State {
        let counted =
            |second| Counted { starts_at: Instant::from_micros(second * 1_000_000), count: 1 };
        let buckets = (0..buckets).map(counted).collect();
        State::Sliding(Box::new(Sliding::new(Span::from_secs(3601), Instant::MIN, buckets)))
    }

    #[test]
    fn a_flood_of_refused_keys_is_remembered_up_to_so_many_bytes_and_the_stale_make_room() {
        let shield = Shield::default();
        let flood = |number: u32, sent_micros| {
            let values = number.to_be_bytes();
            let sighting = Sighting { clock: Instant::MIN, sent_micros };
            shield.remember(Key { limit: 1, values: &values }, Some(&sliding(3600)), sighting);
        };
        let held = || {
            let shards = || shield.shards.iter().map(RwLock::read);
            let bytes: usize = shards().map(|shard| shard.bytes).sum();
            (shards().map(|shard| shard.states.len()).sum::<usize>(), bytes)
        };
        (0..2_000).for_each(|number| flood(number, 0));
        let (keys, bytes) = held();
        assert!(bytes <= SHARDS * MAX_BYTES_PER_SHARD && bytes > MAX_BYTES_PER_SHARD, "{bytes}");
        assert!((100..2_000).contains(&keys), "{keys}");
        // Seen again it takes no second place, and what is a second old gives way.
        (0..2_000).for_each(|number| flood(number, 1));
        assert_eq!(held(), (keys, bytes));
        (2_000..4_000).for_each(|number| flood(number, MAX_AGE_MICROS + 1));
        let (of_before, now) = (keys, held());
        assert!(now.0 <= of_before + SHARDS && now.1 <= SHARDS * MAX_BYTES_PER_SHARD, "{now:?}");
        for number in 0..4_000_u32 {
            shield.forget(Key { limit: 1, values: &number.to_be_bytes() });
        }
        assert_eq!(held(), (0, 0));
    }
}
