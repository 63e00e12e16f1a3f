//! A set of positions, and where positions stand in a window.
//!
//! Position `k` stands at the fraction `k.reverse_bits() / 2^64` of every window (the van der
//! Corput sequence in base 2): 0, 1/2, 1/4, 3/4, 1/8 … So the low bits of a position say in which
//! part of the window it stands, and the positions of one such part are a fixed step apart.
//!
//! A request near the end of a window may take any position, so a set is a list until a bitmap
//! takes less memory, or until it is long; then it is a bitmap. Positions given in order are one
//! from the first on. Either form answers in about √n steps, n being the places of a window.

mod bitmap;
mod list;
mod stretch;

use std::fmt;
use std::ops::Range;

use bitmap::{Bitmap, words_for};
use list::List;
pub(super) use stretch::Stretch;

/// The most places a window may have: 2 MiB as a bitmap.
pub const MAX_PLACES: u64 = 1 << 24;

/// A list is no longer than this: √[`MAX_PLACES`]. So a position costs 512 bytes at the most.
const LONGEST_LIST: u64 = 1 << 12;
/// A bitmap of so many words is small enough for any number of positions.
const SMALL_BITMAP_WORDS: usize = 8;

/// Which positions are taken.
#[derive(Clone)]
pub struct PositionSet(Form);

#[derive(Clone)]
enum Form {
    List(List),
    Bitmap(Bitmap),
}

/// Whether a bitmap is the better form of `len` positions that reach to `highest`.
fn is_bitmap_better(len: u64, highest: u64) -> bool {
    let words = words_for(highest);
    let is_smaller = words * size_of::<u64>() <= len as usize * size_of::<u32>();
    words <= SMALL_BITMAP_WORDS || is_smaller || len > LONGEST_LIST
}

impl PositionSet {
    pub const fn len(&self) -> u64 {
        match &self.0 {
            Form::List(list) => list.len(),
            Form::Bitmap(bitmap) => bitmap.len(),
        }
    }

    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn contains(&self, position: u64) -> bool {
        match &self.0 {
            Form::List(list) => list.contains(position),
            Form::Bitmap(bitmap) => bitmap.contains(position),
        }
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs().flatten()
    }

    /// Maximal runs of taken positions, in ascending order.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let next_run = |from| match &self.0 {
            Form::List(list) => list.next_run(from),
            Form::Bitmap(bitmap) => bitmap.next_run(from),
        };
        std::iter::successors(next_run(0), move |run| next_run(run.end))
    }

    /// One past the highest; 0 if there is none.
    pub(super) fn end(&self) -> u64 {
        match &self.0 {
            Form::List(list) => list.end(),
            Form::Bitmap(bitmap) => bitmap.end(),
        }
    }

    /// The set of ascending runs, all below [`MAX_PLACES`].
    pub(super) fn from_runs(runs: &[Range<u64>]) -> Self {
        let len = runs.iter().map(|run| run.end - run.start).sum();
        let Some(last) = runs.last() else { return Self::default() };
        Self(if is_bitmap_better(len, last.end - 1) {
            Form::Bitmap(Bitmap::from_runs(runs))
        } else {
            Form::List(List::from_runs(runs.iter().cloned()))
        })
    }

    /// The set whose position `k` is bit `k % 64` of word `k / 64`; at most [`MAX_PLACES`] bits.
    pub(super) fn from_words(words: Vec<u64>) -> Self {
        Self(Form::Bitmap(Bitmap::from_words(words)))
    }

    /// Bit by bit as in [`Self::from_words`], the lowest first.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.end().div_ceil(8) as usize];
        match &self.0 {
            Form::List(_) => {
                for position in self.iter() {
                    bytes[(position / 8) as usize] |= 1 << (position % 8);
                }
            }
            Form::Bitmap(bitmap) => {
                for (bytes, word) in bytes.chunks_mut(8).zip(bitmap.words()) {
                    bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
                }
            }
        }
        bytes
    }

    /// False if it was there, or is not below [`MAX_PLACES`].
    pub fn insert(&mut self, position: u64) -> bool {
        if position >= MAX_PLACES {
            return false;
        }
        self.choose_form(position);
        match &mut self.0 {
            Form::List(list) => list.insert(position),
            Form::Bitmap(bitmap) => bitmap.insert(position),
        }
    }

    /// False if it was not there.
    pub fn remove(&mut self, position: u64) -> bool {
        match &mut self.0 {
            Form::List(list) => list.remove(position),
            Form::Bitmap(bitmap) => bitmap.remove(position),
        }
    }

    /// The lowest position below `limit` that is free and stands in one of `stretches`.
    pub(super) fn first_free(&self, stretches: &[Stretch], limit: u64) -> Option<u64> {
        match &self.0 {
            Form::List(list) => list.first_free(stretches, limit),
            Form::Bitmap(bitmap) => bitmap.first_free(stretches, limit),
        }
    }

    /// How many taken positions stand in a stretch.
    pub(super) fn count_in(&self, stretch: Stretch) -> u64 {
        match &self.0 {
            Form::List(list) => list.count_in(stretch),
            Form::Bitmap(bitmap) => bitmap.count_in(stretch),
        }
    }

    /// Takes the form that suits the set with one position more.
    fn choose_form(&mut self, position: u64) {
        let other = match &self.0 {
            Form::Bitmap(bitmap) => {
                let fits = bitmap.reaches(position) || is_bitmap_better(bitmap.len() + 1, position);
                (!fits).then(|| Form::List(List::from_runs(self.runs())))
            }
            Form::List(list) => {
                let highest = list.end().saturating_sub(1).max(position);
                let runs = || self.runs().collect::<Vec<_>>();
                is_bitmap_better(list.len() + 1, highest)
                    .then(|| Form::Bitmap(Bitmap::from_runs(&runs())))
            }
        };
        if let Some(form) = other {
            self.0 = form;
        }
    }
}

impl Default for PositionSet {
    fn default() -> Self {
        Self(Form::Bitmap(Bitmap::default()))
    }
}

impl PartialEq for PositionSet {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.runs().eq(other.runs())
    }
}

impl Eq for PositionSet {}

impl FromIterator<u64> for PositionSet {
    fn from_iter<I: IntoIterator<Item = u64>>(positions: I) -> Self {
        let mut set = Self::default();
        for position in positions {
            set.insert(position);
        }
        set
    }
}

impl fmt::Debug for PositionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_list(set: &PositionSet) -> bool {
        matches!(set.0, Form::List(_))
    }

    #[test]
    fn positions_in_order_are_a_bitmap_from_the_first_on() {
        let mut set = PositionSet::default();
        for position in 0..20_000 {
            assert!(set.insert(position) && !is_list(&set), "{position}");
        }
    }

    #[test]
    fn a_few_far_positions_take_little_memory() {
        let ordered = || (0..500).collect::<PositionSet>();
        for mut set in [PositionSet::default(), ordered()] {
            for position in 0..500 {
                assert!(set.insert(MAX_PLACES - 1 - position * 1000));
                assert!(is_list(&set), "{position}");
            }
            let state = super::super::WindowState { taken: set, guests: 0 };
            let again = super::super::WindowState::decode(&state.encode()).expect("its own bytes");
            assert!(again == state && is_list(&again.taken));
        }
    }

    #[test]
    fn a_list_becomes_a_bitmap_when_that_is_smaller_or_it_is_long() {
        let mut small: PositionSet = (0..256).map(|position| position * 64).collect();
        assert!(is_list(&small));
        for position in 0..256 {
            assert!(small.insert(position * 64 + 1));
        }
        assert!(!is_list(&small));
        let mut long: PositionSet = (0..LONGEST_LIST).map(|position| position * 4000).collect();
        assert!(is_list(&long));
        assert!(long.insert(1) && !is_list(&long));
        assert_eq!(long.len(), LONGEST_LIST + 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn a_list_answers_as_a_bitmap_does(
            taken in prop::collection::btree_set(prop_oneof![0..40u64, 0..3000u64, 0..1u64 << 18], 0..80),
            ends in prop::collection::vec(any::<[u64; 2]>(), 1..4),
            filled: bool, limit in prop_oneof![0..3000u64, 1..1u64 << 18],
        ) {
            let stretches: Vec<_> = ends
                .iter()
                .map(|[one, other]| Stretch { first: *one.min(other), last: *one.max(other) })
                .chain(filled.then_some(Stretch { first: u64::MAX - (1 << 50), last: u64::MAX }))
                .collect();
            let runs: Vec<_> = taken.iter().map(|position| *position..position + 1).collect();
            let (mut list, mut bitmap) =
                (List::from_runs(runs.iter().cloned()), Bitmap::from_runs(&runs));
            // Until it is full, or for a while.
            for _ in 0..20 {
                let free = bitmap.first_free(&stretches, limit);
                prop_assert_eq!(list.first_free(&stretches, limit), free);
                for stretch in &stretches {
                    prop_assert_eq!(list.count_in(*stretch), bitmap.count_in(*stretch));
                }
                let Some(free) = free else { break };
                prop_assert!(list.insert(free) && bitmap.insert(free));
                prop_assert_eq!(list.end(), bitmap.end());
            }
        }

        #[test]
        fn the_lowest_position_of_a_stretch_is_found(
            ends: [u64; 2], narrow in 0..40u32, from in 0..5000u64, limit in 0..6000u64,
        ) {
            let first = ends[0].min(ends[1]);
            let last = first.saturating_add((ends[0].max(ends[1]) - first) >> narrow);
            let stretch = Stretch { first, last };
            let expected = (from..limit).find(|position| stretch.holds(*position));
            prop_assert_eq!(stretch.lowest(from, limit), expected);
        }
    }
}
