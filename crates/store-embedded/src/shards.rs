//! The counts in memory: hash tables behind sharded locks.
//!
//! A request locks the shards of all its keys, in ascending order, and holds them while it decides.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tollgate_core::store::KeyedClaim;
use tollgate_core::{INLINE_LIMITS, Instant, State, States};

/// A power of two. Enough that two requests rarely meet, and that sweeping one shard of ten
/// million keys holds its lock well under a millisecond.
const SHARD_COUNT: usize = 256;

pub(crate) struct Shards {
    shards: Box<[Shard]>,
    hasher: RandomState,
}

/// On cache lines of its own, so that neighbours do not slow each other down.
#[repr(align(128))]
struct Shard(Mutex<Table>);

type Table = HashTable<Entry>;

struct Entry {
    key: Box<[u8]>,
    state: State,
}

impl Shards {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARD_COUNT).map(|_| Shard(Mutex::default())).collect();
        Self { shards, hasher: RandomState::default() }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// By the middle bits: the table itself uses the lowest and the highest.
    fn shard_of(hash: u64) -> usize {
        (hash >> 40) as usize % SHARD_COUNT
    }

    pub(crate) fn lock<'a>(&'a self, claims: &'a [KeyedClaim<'a>]) -> Locked<'a> {
        self.lock_keys(claims.iter().map(|claim| claim.key))
    }

    pub(crate) fn lock_keys<'a>(&'a self, keys: impl Iterator<Item = &'a [u8]>) -> Locked<'a> {
        let mut slots: SmallVec<[Slot<'a>; INLINE_LIMITS]> = keys
            .map(|key| {
                let hash = self.hash(key);
                Slot { key, hash, guard: Self::shard_of(hash), found: None }
            })
            .collect();
        let mut order: SmallVec<[usize; INLINE_LIMITS]> =
            slots.iter().map(|slot| slot.guard).collect();
        if order.len() > 1 {
            order.sort_unstable();
            order.dedup();
        }
        let guards: SmallVec<[MutexGuard<'a, Table>; INLINE_LIMITS]> =
            order.iter().map(|shard| self.shards[*shard].0.lock()).collect();
        for slot in &mut slots {
            slot.guard = order.iter().position(|shard| *shard == slot.guard).unwrap_or_default();
            slot.find(&guards[slot.guard]);
        }
        Locked { guards, slots, hasher: &self.hasher }
    }

    /// Puts a state back at start, when nobody else is there yet.
    pub(crate) fn load(&self, key: Box<[u8]>, state: State) {
        let hash = self.hash(&key);
        let mut table = self.shards[Self::shard_of(hash)].0.lock();
        table.insert_unique(hash, Entry { key, state }, |entry| self.hash(&entry.key));
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().len()).sum()
    }

    pub(crate) const fn shard_count() -> usize {
        SHARD_COUNT
    }

    /// Removes what has expired at `now` from one shard, telling `removed` of each key while the
    /// shard is locked, and gives memory back when most of it went.
    pub(crate) fn sweep(&self, shard: usize, now: Instant, mut removed: impl FnMut(&[u8])) {
        let mut table = self.shards[shard].0.lock();
        table.retain(|entry| {
            let keep = entry.state.expires_at() > now;
            if !keep {
                removed(&entry.key);
            }
            keep
        });
        if table.len() < table.capacity() / 4 {
            let wanted = table.len() * 2;
            table.shrink_to(wanted, |entry| self.hash(&entry.key));
        }
    }
}

/// The locked shards of one request, lending its states to the core.
pub(crate) struct Locked<'a> {
    guards: SmallVec<[MutexGuard<'a, Table>; INLINE_LIMITS]>,
    slots: SmallVec<[Slot<'a>; INLINE_LIMITS]>,
    hasher: &'a RandomState,
}

struct Slot<'a> {
    key: &'a [u8],
    hash: u64,
    guard: usize,
    /// Where in its table the key stands, if it does.
    found: Option<usize>,
}

impl Slot<'_> {
    fn find(&mut self, table: &Table) {
        self.found = table.find_bucket_index(self.hash, |entry| *entry.key == *self.key);
    }
}

impl Locked<'_> {
    /// Each key with its state, where it has one.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&[u8], &State)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(position, slot)| Some((slot.key, self.get(position)?)))
    }

    pub(crate) fn get_mut(&mut self, position: usize) -> Option<&mut State> {
        let slot = &self.slots[position];
        let entry = self.guards[slot.guard].get_bucket_mut(slot.found?)?;
        Some(&mut entry.state)
    }
}

impl States for Locked<'_> {
    fn get(&self, position: usize) -> Option<&State> {
        let slot = &self.slots[position];
        Some(&self.guards[slot.guard].get_bucket(slot.found?)?.state)
    }

    fn get_or_insert(&mut self, position: usize, fresh: State) -> &mut State {
        let guard = self.slots[position].guard;
        if self.slots[position].found.is_none() {
            let (hash, key) = (self.slots[position].hash, self.slots[position].key);
            let hasher = self.hasher;
            let entry = Entry { key: key.into(), state: fresh };
            self.guards[guard].insert_unique(hash, entry, |entry| hasher.hash_one(&*entry.key));
            // Making room may have moved the other keys of this table.
            for slot in self.slots.iter_mut().filter(|slot| slot.guard == guard) {
                slot.find(&self.guards[guard]);
            }
        }
        self.get_mut(position).expect("found or just inserted, and its shard is locked")
    }
}
