//! The counts in memory: hash tables behind sharded locks.
//!
//! A request locks the shards of all its keys, in ascending order, and holds them while it decides.

use std::hash::BuildHasher;
use std::iter::{once, repeat_n};

use allocator_api2::alloc::System;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;
use spin::mutex::{SpinMutex, SpinMutexGuard};
use tollgate_core::store::{Key, KeyedClaim};
use tollgate_core::{INLINE_LIMITS, Instant, State, States};

/// Enough that two requests rarely meet, and that sweeping one shard of ten million keys holds its
/// lock under a millisecond. Tables double when seven eighths full, so this number says how full they
/// are at the round numbers of keys that people plan for, and the fuller, the fewer cache lines are
/// touched: 68 % at 100,000 keys, 85 % at a million and 53 % at ten.
const UNSHARED_COUNT: usize = 144;
/// Behind those, for keys that all requests of a limit share. Everybody waits for these, so they
/// are locked last, when everything else of the request is at hand.
const SHARED_COUNT: usize = 16;
const SHARD_COUNT: usize = UNSHARED_COUNT + SHARED_COUNT;

pub(crate) struct Shards {
    shards: Box<[Shard]>,
    hasher: RandomState,
}

/// On cache lines of its own, so that neighbours do not slow each other down. Held for the
/// length of one decision but while it is swept or grows, so whoever waits looks again and again: a lock that must
/// know, when it is let go, whether somebody sleeps takes a second atomic operation for each
/// decision, and waking somebody takes longer than the decision he waited for.
#[repr(align(128))]
struct Shard(SpinMutex<Table>);

/// From the system, whatever else the program allocates with. An allocator that keeps memory for the
/// thread that asked for it keeps what a sweep gives back until that thread allocates again, and an
/// idle one never does.
type Table = HashTable<Entry, System>;

/// Whoever finds a lock taken pauses for so long before it looks again, and after the last lets
/// others run before each look: the holder may be one of them. Growing, so that under a crowd one
/// thread decides a few times in a row before the next comes: what it changes then stays in its cache.
const PATIENT_WAITS: [u32; 3] = [64, 128, 256];
/// Before those, for who needs this lock alone: two that hardly ever meet would otherwise wait for
/// twenty times as long as the other holds it.
const BRIEF_WAIT: u32 = 4;
/// So many pauses, so many times, for who already holds other locks of its request: what it changes
/// is at hand, and with the next request it will be something else.
const EAGER_WAITS: (u32, usize) = (2, 200);

impl Shard {
    #[inline]
    fn lock(&self) -> SpinMutexGuard<'_, Table> {
        self.0.try_lock().unwrap_or_else(|| self.lock_slowly(PATIENT_WAITS))
    }

    /// The only one of its request.
    #[inline]
    fn lock_alone(&self) -> SpinMutexGuard<'_, Table> {
        let waits = once(BRIEF_WAIT).chain(PATIENT_WAITS);
        self.0.try_lock().unwrap_or_else(|| self.lock_slowly(waits))
    }

    #[inline]
    fn lock_eagerly(&self) -> SpinMutexGuard<'_, Table> {
        let (pauses, times) = EAGER_WAITS;
        self.0.try_lock().unwrap_or_else(|| self.lock_slowly(repeat_n(pauses, times)))
    }

    #[cold]
    fn lock_slowly(&self, waits: impl IntoIterator<Item = u32>) -> SpinMutexGuard<'_, Table> {
        for pauses in waits {
            (0..pauses).for_each(|_| std::hint::spin_loop());
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
        }
        loop {
            std::thread::yield_now();
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
        }
    }
}

/// 48 bytes, with a short key and nothing else.
struct Entry {
    key: KeptKey,
    state: State,
}

/// Most keys are short: they stand in the table itself, so that finding one touches no more memory.
enum KeptKey {
    Short { length: u8, bytes: [u8; KeptKey::SHORT] },
    Long(Box<[u8]>),
}

impl KeptKey {
    const SHORT: usize = 22;

    #[inline]
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }

    #[inline]
    fn get(&self) -> Key<'_> {
        Key::parse(self.as_slice()).expect("it was made from one")
    }

    #[inline(always)]
    fn is(&self, key: Key<'_>) -> bool {
        Key::parse(self.as_slice()) == Some(key)
    }
}

impl From<Key<'_>> for KeptKey {
    fn from(key: Key<'_>) -> Self {
        let bytes = key.to_vec();
        match u8::try_from(bytes.len()) {
            Ok(length) if bytes.len() <= Self::SHORT => {
                let mut short = [0; Self::SHORT];
                short[..bytes.len()].copy_from_slice(&bytes);
                Self::Short { length, bytes: short }
            }
            _ => Self::Long(bytes.into()),
        }
    }
}

impl Shards {
    pub(crate) fn new() -> Self {
        let shards =
            (0..SHARD_COUNT).map(|_| Shard(SpinMutex::new(Table::new_in(System)))).collect();
        Self { shards, hasher: RandomState::default() }
    }

    #[inline]
    fn hash(&self, key: Key<'_>) -> u64 {
        self.hasher.hash_one(key)
    }

    /// By the middle bits of its hash: the table itself uses the lowest and the highest.
    #[inline]
    fn shard_of(key: Key<'_>, hash: u64) -> usize {
        let middle = (hash >> 40) as usize;
        if key.values.is_empty() {
            UNSHARED_COUNT + middle % SHARED_COUNT
        } else {
            middle % UNSHARED_COUNT
        }
    }

    /// Lends the state of one key to `then`, with its shard locked, if the key is known: what most
    /// requests need, and no more.
    #[inline]
    pub(crate) fn with_one_known<R>(
        &self,
        key: Key<'_>,
        then: impl FnOnce(&mut State) -> R,
    ) -> Option<R> {
        let hash = self.hash(key);
        let mut table = self.shards[Self::shard_of(key, hash)].lock_alone();
        let entry = table.find_mut(hash, |entry| entry.key.is(key))?;
        Some(then(&mut entry.state))
    }

    /// Lends the states of `keys` to `then`, with their shards locked.
    #[inline]
    pub(crate) fn with_locked<'a, R>(
        &self,
        keys: impl Iterator<Item = Key<'a>>,
        then: impl FnOnce(&mut Locked<'_, 'a>) -> R,
    ) -> R {
        let mut seats: SmallVec<[Seat<'a>; INLINE_LIMITS]> = SmallVec::new();
        let mut order = Order::new();
        for key in keys {
            let hash = self.hash(key);
            let shard = Self::shard_of(key, hash);
            let spot = order.iter().position(|(before, _)| *before > shard);
            order.insert(spot.unwrap_or(order.len()), (shard, seats.len()));
            seats.push(Seat { key, hash, guard: 0, found: None });
        }
        let guards = self.lock_in_order(&order, &mut seats);
        then(&mut Locked { guards, seats, hasher: &self.hasher })
    }

    /// Each shard once.
    fn lock_in_order<'s>(&'s self, order: &Order, seats: &mut [Seat<'_>]) -> Guards<'s> {
        let mut guards = Guards::new();
        let mut last = None;
        for &(shard, position) in order {
            if last != Some(shard) {
                guards.push(self.shards[shard].lock());
                last = Some(shard);
            }
            seats[position].guard = guards.len() - 1;
        }
        for seat in seats {
            seat.find(&guards[seat.guard]);
        }
        guards
    }

    /// Lends the states of a few keys to `then`, with their shards locked, if every one is known
    /// and in a shard of its own: what nearly all requests find.
    #[inline]
    pub(crate) fn with_known<R>(
        &self,
        claims: &[KeyedClaim<'_>],
        then: impl FnOnce(&mut Known<'_>) -> R,
    ) -> Option<R> {
        let mut spots = [Spot { shard: usize::MAX, position: 0, hash: 0 }; INLINE_LIMITS];
        if claims.len() > spots.len() {
            return None;
        }
        let mut unshared = 0;
        for (position, keyed) in claims.iter().enumerate() {
            let hash = self.hash(keyed.key);
            let spot = Spot { shard: Self::shard_of(keyed.key, hash), position, hash };
            unshared += usize::from(spot.shard < UNSHARED_COUNT);
            // One of few: put where it belongs by hand.
            let mut at = position;
            while at > 0 && spots[at - 1].shard >= spot.shard {
                if spots[at - 1].shard == spot.shard {
                    return None;
                }
                spots[at] = spots[at - 1];
                at -= 1;
            }
            spots[at] = spot;
        }
        let spots = &spots[..claims.len()];
        let mut guards = [const { None }; INLINE_LIMITS];
        let mut states = [const { None }; INLINE_LIMITS];
        let (spots, shared_spots) = spots.split_at(unshared);
        let (guards, shared_guards) = guards.split_at_mut(unshared);
        // What others hardly wait for is all locked before any is read, so that it is fetched
        // together, and all read before the rest is locked.
        let mut is_first = true;
        for (spots, guards) in [(spots, guards), (shared_spots, &mut *shared_guards)] {
            for (spot, guard) in spots.iter().zip(&mut *guards) {
                let shard = &self.shards[spot.shard];
                *guard = Some(if is_first { shard.lock() } else { shard.lock_eagerly() });
                is_first = false;
            }
            for (spot, guard) in spots.iter().zip(guards) {
                let key = claims[spot.position].key;
                let table: &mut Table = guard.as_mut()?;
                let entry = table.find_mut(spot.hash, |entry| entry.key.is(key))?;
                entry.state.fetch();
                states[spot.position] = Some(&mut entry.state);
            }
        }
        let result = then(&mut Known(states));
        shared_guards.fill_with(|| None);
        Some(result)
    }

    /// Puts a state back at start, when nobody else is there yet.
    pub(crate) fn load(&self, key: Key<'_>, state: State) {
        let hash = self.hash(key);
        let mut table = self.shards[Self::shard_of(key, hash)].lock();
        let entry = Entry { key: key.into(), state };
        table.insert_unique(hash, entry, |entry| self.hash(entry.key.get()));
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
        mut removed: impl FnMut(Key<'_>, Instant),
    ) -> usize {
        let mut table = self.shards[shard].lock();
        let before = table.len();
        table.retain(|entry| {
            let expires_at = entry.state.expires_at();
            if expires_at <= now {
                removed(entry.key.get(), expires_at);
            }
            expires_at > now
        });
        if table.len() < table.capacity() / 4 {
            let wanted = table.len() * 2;
            table.shrink_to(wanted, |entry| self.hash(entry.key.get()));
        }
        before - table.len()
    }
}

/// The locked shards of one request, lending its states to the core.
pub(crate) struct Locked<'s, 'a> {
    guards: Guards<'s>,
    seats: SmallVec<[Seat<'a>; INLINE_LIMITS]>,
    hasher: &'s RandomState,
}

type Guards<'s> = SmallVec<[SpinMutexGuard<'s, Table>; INLINE_LIMITS]>;

/// Where a key is looked for.
#[derive(Clone, Copy)]
struct Spot {
    shard: usize,
    /// Of its claim.
    position: usize,
    hash: u64,
}

/// Shards with the positions of the keys in them, ascending: so no two requests wait for each other.
type Order = SmallVec<[(usize, usize); INLINE_LIMITS]>;

/// A key with its state.
pub(crate) type KeyedState<'a> = (Key<'a>, &'a State);

struct Seat<'a> {
    key: Key<'a>,
    hash: u64,
    guard: usize,
    /// Where in its table the key stands, if it does.
    found: Option<usize>,
}

impl Seat<'_> {
    fn find(&mut self, table: &Table) {
        let is_it = |entry: &Entry| entry.key.is(self.key);
        self.found = table.find_bucket_index(self.hash, is_it);
    }
}

impl Locked<'_, '_> {
    /// Each key with its state, where it has one.
    pub(crate) fn states(&self) -> SmallVec<[KeyedState<'_>; INLINE_LIMITS]> {
        let mut states = SmallVec::new();
        for (position, seat) in self.seats.iter().enumerate() {
            if let Some(state) = self.get(position) {
                states.push((seat.key, state));
            }
        }
        states
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, position: usize) -> Option<&mut State> {
        let seat = &self.seats[position];
        Some(&mut self.guards[seat.guard].get_bucket_mut(seat.found?)?.state)
    }

    #[cold]
    fn insert(&mut self, position: usize, state: State) {
        let Seat { key, hash, guard, .. } = self.seats[position];
        let (entry, hasher) = (Entry { key: key.into(), state }, self.hasher);
        let table = &mut self.guards[guard];
        table.insert_unique(hash, entry, |entry| hasher.hash_one(entry.key.get()));
        // Making room may have moved the other keys of this table.
        for seat in self.seats.iter_mut().filter(|seat| seat.guard == guard) {
            seat.find(table);
        }
    }
}

/// The states of one request, none of which has to be made.
pub(crate) struct Known<'s>([Option<&'s mut State>; INLINE_LIMITS]);

impl Known<'_> {
    /// Each with its key.
    pub(crate) fn with_keys<'a>(
        &'a self,
        claims: &'a [KeyedClaim<'_>],
    ) -> SmallVec<[KeyedState<'a>; INLINE_LIMITS]> {
        let states = self.0.iter().flatten();
        claims.iter().zip(states).map(|(keyed, state)| (keyed.key, &**state)).collect()
    }
}

impl States for Known<'_> {
    #[inline]
    fn get(&self, position: usize) -> Option<&State> {
        self.0[position].as_deref()
    }

    #[inline]
    fn get_or_insert_with(&mut self, position: usize, _: impl FnOnce() -> State) -> &mut State {
        self.0[position].as_deref_mut().expect("every key is known")
    }
}

impl States for Locked<'_, '_> {
    #[inline]
    fn get(&self, position: usize) -> Option<&State> {
        let seat = &self.seats[position];
        Some(&self.guards[seat.guard].get_bucket(seat.found?)?.state)
    }

    #[inline]
    fn get_or_insert_with(&mut self, position: usize, fresh: impl FnOnce() -> State) -> &mut State {
        if self.seats[position].found.is_none() {
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
    fn what_everybody_waits_for_is_locked_last() {
        let shared = |limit| Shards::shard_of(Key { limit, values: b"" }, limit << 40);
        let unshared = |limit| Shards::shard_of(Key { limit, values: b"ada" }, limit << 40);
        let last_unshared = (0..1000).map(unshared).max();
        assert_eq!(last_unshared, Some(UNSHARED_COUNT - 1));
        assert!((0..1000).map(shared).min() > last_unshared);
        assert_eq!((0..1000).map(shared).max(), Some(SHARD_COUNT - 1));
    }

    #[test]
    fn short_and_long_keys_are_kept_as_they_are() {
        for length in [8, 9, KeptKey::SHORT, KeptKey::SHORT + 1, 300] {
            let bytes: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            let key = Key::parse(&bytes).unwrap();
            let kept = KeptKey::from(key);
            assert_eq!(kept.get(), key);
            assert_eq!(matches!(kept, KeptKey::Short { .. }), length <= KeptKey::SHORT);
        }
    }
}
