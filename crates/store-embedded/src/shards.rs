//! The counts in memory: hash tables behind sharded locks.
//!
//! A request locks the shards of all its keys, in ascending order, and holds them while it decides.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use smallvec::SmallVec;
use tollgate_core::{INLINE_LIMITS, Instant, State, States};

/// Enough that two requests rarely meet, and that sweeping one shard of ten million keys holds its
/// lock well under a millisecond. Tables double when seven eighths full; three times a power of two
/// makes that happen away from the round numbers of keys that people plan for.
const SHARD_COUNT: usize = 192;

pub(crate) struct Shards {
    shards: Box<[Shard]>,
    hasher: RandomState,
}

/// On cache lines of its own, so that neighbours do not slow each other down.
#[repr(align(128))]
struct Shard(Mutex<Table>);

type Table = HashTable<Entry>;

/// Looks at a taken lock this often before it lets the lock's own waiting begin: what is done
/// under it takes about as long, and much less than being put to sleep.
const SHORT_WAIT: u32 = 200;

impl Shard {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.try_lock().unwrap_or_else(|| self.lock_slowly())
    }

    #[cold]
    fn lock_slowly(&self) -> MutexGuard<'_, Table> {
        for _ in 0..SHORT_WAIT {
            if !self.0.is_locked()
                && let Some(guard) = self.0.try_lock()
            {
                return guard;
            }
        }
        self.0.lock()
    }
}

/// 48 bytes, with a short key and nothing else.
struct Entry {
    key: Key,
    state: State,
}

/// Most keys are short: they stand in the table itself, so that finding one touches no more memory.
enum Key {
    Short { length: u8, bytes: [u8; Key::SHORT] },
    Long(Box<[u8]>),
}

impl Key {
    const SHORT: usize = 22;

    #[inline]
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Key {
    fn from(key: &[u8]) -> Self {
        match u8::try_from(key.len()) {
            Ok(length) if key.len() <= Self::SHORT => {
                let mut bytes = [0; Self::SHORT];
                bytes[..key.len()].copy_from_slice(key);
                Self::Short { length, bytes }
            }
            _ => Self::Long(key.into()),
        }
    }
}

impl Shards {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARD_COUNT).map(|_| Shard(Mutex::default())).collect();
        Self { shards, hasher: RandomState::default() }
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// By the middle bits: the table itself uses the lowest and the highest.
    fn shard_of(hash: u64) -> usize {
        (hash >> 40) as usize % SHARD_COUNT
    }

    /// The state of one key, locked, if the key is known: what most requests need, and no more.
    #[inline]
    pub(crate) fn lock_known(&self, key: &[u8]) -> Option<MappedMutexGuard<'_, State>> {
        let hash = self.hash(key);
        let table = self.shards[Self::shard_of(hash)].lock();
        MutexGuard::try_map(table, |table| {
            let entry = table.find_mut(hash, |entry| entry.key.as_slice() == key)?;
            Some(&mut entry.state)
        })
        .ok()
    }

    /// Lends the states of `keys` to `then`, with their shards locked.
    #[inline]
    pub(crate) fn with_locked<'a, R>(
        &self,
        keys: impl Iterator<Item = &'a [u8]>,
        then: impl FnOnce(&mut Locked<'_, 'a>) -> R,
    ) -> R {
        let mut slots: SmallVec<[Slot<'a>; INLINE_LIMITS]> = SmallVec::new();
        for key in keys {
            let hash = self.hash(key);
            slots.push(Slot { key, hash, guard: Self::shard_of(hash), found: None });
        }
        let guards = self.lock_in_order(&mut slots);
        then(&mut Locked { guards, slots, hasher: &self.hasher })
    }

    /// Ascending, each once: so no two requests wait for each other.
    fn lock_in_order<'s>(&'s self, slots: &mut [Slot<'_>]) -> Guards<'s> {
        let mut order: SmallVec<[usize; INLINE_LIMITS]> = SmallVec::new();
        for slot in &*slots {
            order.push(slot.guard);
        }
        order.sort_unstable();
        order.dedup();
        let mut guards = Guards::new();
        for shard in &order {
            guards.push(self.shards[*shard].lock());
        }
        for slot in slots {
            slot.guard = order.iter().position(|shard| *shard == slot.guard).unwrap_or_default();
            slot.find(&guards[slot.guard]);
        }
        guards
    }

    /// Puts a state back at start, when nobody else is there yet.
    pub(crate) fn load(&self, key: &[u8], state: State) {
        let hash = self.hash(key);
        let mut table = self.shards[Self::shard_of(hash)].lock();
        let entry = Entry { key: key.into(), state };
        table.insert_unique(hash, entry, |entry| self.hash(entry.key.as_slice()));
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub(crate) const fn shard_count() -> usize {
        SHARD_COUNT
    }

    /// Removes what has expired at `now` from one shard, telling `removed` of each key and its end while the
    /// shard is locked, and gives memory back when most of it went.
    pub(crate) fn sweep(
        &self,
        shard: usize,
        now: Instant,
        mut removed: impl FnMut(&[u8], Instant),
    ) -> usize {
        let mut table = self.shards[shard].lock();
        let before = table.len();
        table.retain(|entry| {
            let expires_at = entry.state.expires_at();
            if expires_at <= now {
                removed(entry.key.as_slice(), expires_at);
            }
            expires_at > now
        });
        if table.len() < table.capacity() / 4 {
            let wanted = table.len() * 2;
            table.shrink_to(wanted, |entry| self.hash(entry.key.as_slice()));
        }
        before - table.len()
    }
}

/// The locked shards of one request, lending its states to the core.
pub(crate) struct Locked<'s, 'a> {
    guards: Guards<'s>,
    slots: SmallVec<[Slot<'a>; INLINE_LIMITS]>,
    hasher: &'s RandomState,
}

type Guards<'s> = SmallVec<[MutexGuard<'s, Table>; INLINE_LIMITS]>;

/// A key with its state.
pub(crate) type KeyedState<'a> = (&'a [u8], &'a State);

struct Slot<'a> {
    key: &'a [u8],
    hash: u64,
    guard: usize,
    /// Where in its table the key stands, if it does.
    found: Option<usize>,
}

impl Slot<'_> {
    fn find(&mut self, table: &Table) {
        let is_it = |entry: &Entry| entry.key.as_slice() == self.key;
        self.found = table.find_bucket_index(self.hash, is_it);
    }
}

impl Locked<'_, '_> {
    /// Each key with its state, where it has one.
    pub(crate) fn states(&self) -> SmallVec<[KeyedState<'_>; INLINE_LIMITS]> {
        let mut states = SmallVec::new();
        for (position, slot) in self.slots.iter().enumerate() {
            if let Some(state) = self.get(position) {
                states.push((slot.key, state));
            }
        }
        states
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, position: usize) -> Option<&mut State> {
        let slot = &self.slots[position];
        Some(&mut self.guards[slot.guard].get_bucket_mut(slot.found?)?.state)
    }

    #[cold]
    fn insert(&mut self, position: usize, state: State) {
        let Slot { key, hash, guard, .. } = self.slots[position];
        let (entry, hasher) = (Entry { key: key.into(), state }, self.hasher);
        let table = &mut self.guards[guard];
        table.insert_unique(hash, entry, |entry| hasher.hash_one(entry.key.as_slice()));
        // Making room may have moved the other keys of this table.
        for slot in self.slots.iter_mut().filter(|slot| slot.guard == guard) {
            slot.find(table);
        }
    }
}

impl States for Locked<'_, '_> {
    #[inline]
    fn get(&self, position: usize) -> Option<&State> {
        let slot = &self.slots[position];
        Some(&self.guards[slot.guard].get_bucket(slot.found?)?.state)
    }

    #[inline]
    fn get_or_insert_with(&mut self, position: usize, fresh: impl FnOnce() -> State) -> &mut State {
        if self.slots[position].found.is_none() {
            self.insert(position, fresh());
        }
        self.get_mut(position).expect("found or just inserted, and its shard is locked")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_small() {
        assert_eq!(size_of::<State>(), 24);
        assert_eq!(size_of::<Entry>(), 48);
    }

    #[test]
    fn short_and_long_keys_are_kept_as_they_are() {
        for length in [0, 1, Key::SHORT, Key::SHORT + 1, 300] {
            let bytes: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            let key = Key::from(&*bytes);
            assert_eq!(key.as_slice(), bytes);
            assert_eq!(matches!(key, Key::Short { .. }), length <= Key::SHORT);
        }
    }
}
