//! The most frequent of many, in bounded memory: the summary of Misra and Gries, which can be
//! merged.
//!
//! **Error.** Whoever was counted is never overstated, and understated by at most [`Sketch::missed`];
//! so is whoever is not there at all. After `n` counts, `missed` is at most `n / (capacity + 1)`,
//! also after any merges of sketches of one capacity. While no more keys come than there is room
//! for, it is 0 and every count is exact.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use tollgate_core::Instant;

/// How often one was refused, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tally {
    pub(crate) refused: u64,
    /// As far as is known: one that was crowded out begins anew.
    pub(crate) first_seen: Instant,
    pub(crate) last_seen: Instant,
}

impl Tally {
    pub(crate) fn one(at: Instant) -> Self {
        Self { refused: 1, first_seen: at, last_seen: at }
    }

    /// The same, none of it later than `now`.
    pub(crate) fn by(self, now: Instant) -> Self {
        let (first_seen, last_seen) = (self.first_seen.min(now), self.last_seen.min(now));
        Self { first_seen, last_seen, ..self }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.refused = self.refused.saturating_add(other.refused);
        self.first_seen = self.first_seen.min(other.first_seen);
        self.last_seen = self.last_seen.max(other.last_seen);
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Sketch<K> {
    tallies: HashMap<K, Tally, foldhash::fast::RandomState>,
    capacity: usize,
    missed: u64,
}

impl<K: Hash + Eq> Sketch<K> {
    /// At least one key.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { tallies: HashMap::default(), capacity: capacity.max(1), missed: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.tallies.len()
    }

    /// What any count may be short of.
    pub(crate) fn missed(&self) -> u64 {
        self.missed
    }

    /// Counts that are known to be missing here.
    pub(crate) fn miss(&mut self, refused: u64) {
        self.missed = self.missed.saturating_add(refused);
    }

    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Tally>
    where
        K: Borrow<Q>,
    {
        self.tallies.get(key).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &Tally)> {
        self.tallies.iter()
    }

    /// Adds to a key that is there; says whether it is.
    pub(crate) fn add_known<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, tally: Tally) -> bool
    where
        K: Borrow<Q>,
    {
        let known = self.tallies.get_mut(key);
        let is_known = known.is_some();
        if let Some(known) = known {
            known.add(tally);
        }
        is_known
    }

    /// Adds to a key, crowding others out where there is no room.
    pub(crate) fn add(&mut self, key: K, mut tally: Tally) {
        if self.add_known(&key, tally) {
            return;
        }
        if self.tallies.len() >= self.capacity {
            let least = self.tallies.values().map(|known| known.refused).min().unwrap_or(0);
            let less = least.min(tally.refused);
            self.lower_all(less);
            tally.refused -= less;
        }
        // If it is not used up, somebody with the least was, and left room.
        if tally.refused > 0 {
            self.tallies.insert(key, tally);
        }
    }

    /// Keeps at most this many keys, now and later.
    pub(crate) fn shrink(&mut self, capacity: usize) {
        self.capacity = capacity.max(1);
        if self.tallies.len() <= self.capacity {
            return;
        }
        let mut counts: Vec<u64> = self.tallies.values().map(|tally| tally.refused).collect();
        let position = counts.len() - 1 - self.capacity;
        let (_, beyond, _) = counts.select_nth_unstable(position);
        self.lower_all(*beyond);
        self.tallies.shrink_to_fit();
    }

    /// Takes the same from everybody. Each time that removes as much from at least `capacity + 1`
    /// keys, hence the bound.
    fn lower_all(&mut self, less: u64) {
        self.missed = self.missed.saturating_add(less);
        self.tallies.retain(|_, tally| {
            tally.refused -= less.min(tally.refused);
            tally.refused > 0
        });
    }
}

impl<K: Hash + Eq> IntoIterator for Sketch<K> {
    type Item = (K, Tally);
    type IntoIter = std::collections::hash_map::IntoIter<K, Tally>;

    fn into_iter(self) -> Self::IntoIter {
        self.tallies.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn at(micros: i64) -> Tally {
        Tally::one(Instant::from_micros(micros))
    }

    /// Never more than the truth, never short by more than `missed`, and `missed` in its bound.
    fn holds(sketch: &Sketch<u16>, truth: &HashMap<u16, u64>, capacity: u64) -> Result<(), String> {
        let total: u64 = truth.values().sum();
        if sketch.missed() > total / (capacity + 1) {
            return Err(format!("missed {} of {total}", sketch.missed()));
        }
        for (key, true_count) in truth {
            let counted = sketch.get(key).map_or(0, |tally| tally.refused);
            if counted > *true_count || counted + sketch.missed() < *true_count {
                return Err(format!("{key}: {counted} + {} of {true_count}", sketch.missed()));
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn every_count_is_within_the_bound(
            // Squared, so that some keys come often.
            keys in prop::collection::vec((0u16..40).prop_map(|key| key * key / 40), 0..600),
            capacity in 1usize..20,
        ) {
            let mut sketch = Sketch::new(capacity);
            let mut truth = HashMap::new();
            for (position, key) in keys.iter().enumerate() {
                sketch.add(*key, at(position as i64));
                *truth.entry(*key).or_default() += 1;
                prop_assert!(sketch.len() <= capacity);
            }
            prop_assert_eq!(holds(&sketch, &truth, capacity as u64), Ok(()));
        }

        #[test]
        fn merged_and_weighted_counts_are_within_the_bound_too(
            parts in prop::collection::vec(
                prop::collection::vec((0u16..60, 1u64..9), 0..120), 1..6),
            capacity in 1usize..20,
        ) {
            let mut merged = Sketch::new(capacity);
            let mut truth = HashMap::new();
            for part in parts {
                let mut sketch = Sketch::new(capacity);
                for (key, refused) in part {
                    sketch.add(key, Tally { refused, ..at(0) });
                    *truth.entry(key).or_default() += refused;
                }
                merged.miss(sketch.missed());
                for (key, tally) in sketch {
                    merged.add(key, tally);
                }
                prop_assert!(merged.len() <= capacity);
            }
            prop_assert_eq!(holds(&merged, &truth, capacity as u64), Ok(()));
        }

        #[test]
        fn a_smaller_sketch_says_how_much_more_it_misses(
            counts in prop::collection::hash_map(0u16..100, 1u64..50, 1..60),
            capacity in 1usize..30,
        ) {
            let mut sketch = Sketch::new(100);
            for (key, refused) in &counts {
                sketch.add(*key, Tally { refused: *refused, ..at(0) });
            }
            prop_assert_eq!(sketch.missed(), 0);
            sketch.shrink(capacity);
            prop_assert!(sketch.len() <= capacity);
            prop_assert_eq!(holds(&sketch, &counts, capacity as u64), Ok(()));
        }
    }

    #[test]
    fn a_smaller_sketch_takes_what_the_first_one_beyond_it_has() {
        let mut sketch = Sketch::new(9);
        for (key, refused) in [(1, 2), (2, 10), (3, 5), (4, 7)] {
            sketch.add(key, Tally { refused, ..at(0) });
        }
        sketch.shrink(2);
        let counted = [1, 2, 3, 4].map(|key| sketch.get(&key).map_or(0, |tally| tally.refused));
        assert_eq!((counted, sketch.missed()), ([0, 5, 0, 2], 5));
    }

    #[test]
    fn while_there_is_room_every_count_is_exact_with_its_times() {
        let mut sketch = Sketch::new(3);
        for (key, micros) in [(1, 10), (2, 20), (1, 30), (3, 40), (1, 5)] {
            sketch.add(key, at(micros));
        }
        let first_seen = Instant::from_micros(5);
        let tally = Tally { refused: 3, first_seen, last_seen: Instant::from_micros(30) };
        assert_eq!(sketch.get(&1), Some(tally));
        assert_eq!((sketch.len(), sketch.missed()), (3, 0));
    }
}
