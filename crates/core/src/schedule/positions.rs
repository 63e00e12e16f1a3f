//! A set of positions, and where positions stand in a window.
//!
//! Position `k` stands at the fraction `k.reverse_bits() / 2^64` of every window (the van der
//! Corput sequence in base 2): 0, 1/2, 1/4, 3/4, 1/8 … So the low bits of a position say in which
//! part of the window it stands, and the positions of one such part (a cell) are a fixed step
//! apart. The set keeps, for about √n cells, how many are taken and which is the lowest free one;
//! both questions a schedule asks then cost about √n steps, not n.
//!
//! Deliberately dense: a bit for each position up to the highest taken, so 2 MiB at the most.

use std::fmt;
use std::ops::Range;

use smallvec::{SmallVec, smallvec};

/// The most places a window may have. A request near the end of a window may take any position,
/// so this bounds the memory that one request can cost.
pub const MAX_PLACES: u64 = 1 << 24;

/// Up to this many positions (as a power of two) one cell is enough.
const ONE_CELL_BITS: u32 = 8;

/// Which positions are taken.
#[derive(Clone)]
pub struct PositionSet {
    /// None, or a power of two of them.
    words: Vec<u64>,
    len: u64,
    /// A power of two of them, by the leading bits of the reversed position. Derived from `words`.
    cells: SmallVec<[Cell; 1]>,
}

/// The positions that share their lowest bits.
#[derive(Clone, Copy, Default)]
struct Cell {
    taken: u32,
    /// Counted in steps within the cell; one past the last word if all there are taken.
    lowest_free: u32,
}

/// A part of every window: the reversed positions from `first` to `last`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stretch {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Stretch {
    pub(super) const WHOLE: Self = Self { first: 0, last: u64::MAX };

    fn holds(self, position: u64) -> bool {
        (self.first..=self.last).contains(&position.reverse_bits())
    }

    /// The lowest position that stands here and is at least `from`, a power of two or 0; none if
    /// it is not below `limit`.
    fn lowest(self, from: u64, limit: u64) -> Option<u64> {
        if from == 0 && self.first == 0 {
            return (limit > 0).then_some(0);
        }
        // Positions of one length are the odd multiples of one power of two, reversed.
        let mut length = from.max(1).ilog2() + 1;
        while length <= 64 && 1 << (length - 1) < limit {
            if let Some(position) = self.lowest_of_length(length) {
                return (position < limit).then_some(position);
            }
            length += 1;
        }
        None
    }

    /// The lowest position of exactly `length` bits that stands here.
    fn lowest_of_length(self, length: u32) -> Option<u64> {
        let unit = 1u64 << (64 - length);
        let (lowest, highest) = (self.first.div_ceil(unit) | 1, self.last / unit);
        if lowest > highest {
            return None;
        }
        // Without their last bit, which is 1. Bits are chosen from the last to the first, as they
        // weigh in the reversed number: 0 wherever an even number is left.
        let (mut low, mut high) = (lowest >> 1, (highest - 1) >> 1);
        let mut position = 1u64;
        for _ in 1..length {
            let odd = low == high && low % 2 == 1;
            position = (position << 1) | u64::from(odd);
            low = if odd { low >> 1 } else { low.div_ceil(2) };
            high >>= 1;
        }
        Some(position)
    }
}

impl PositionSet {
    pub const fn len(&self) -> u64 {
        self.len
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn contains(&self, position: u64) -> bool {
        let word = self.words.get((position / 64) as usize);
        word.is_some_and(|word| (word >> (position % 64)) & 1 == 1)
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs().flatten()
    }

    /// Maximal runs of taken positions, in ascending order.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut end = 0;
        std::iter::from_fn(move || {
            let start = self.next_bit(end, 0);
            end = self.next_bit(start, u64::MAX);
            (start < end).then_some(start..end)
        })
    }

    /// The set whose position `k` is bit `k % 64` of word `k / 64`; at most [`MAX_PLACES`] bits.
    pub(super) fn from_words(mut words: Vec<u64>) -> Self {
        debug_assert!(words.len() as u64 * 64 <= MAX_PLACES);
        if !words.is_empty() {
            words.resize(words.len().next_power_of_two(), 0);
        }
        let len = words.iter().map(|word| u64::from(word.count_ones())).sum();
        let mut set = Self { words, len, ..Self::default() };
        set.fill_cells();
        set
    }

    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    /// False if it was there, or is not below [`MAX_PLACES`].
    pub fn insert(&mut self, position: u64) -> bool {
        if position >= MAX_PLACES || self.contains(position) {
            return false;
        }
        self.reach(position);
        self.words[(position / 64) as usize] |= 1 << (position % 64);
        self.len += 1;
        let (bits, cell) = (self.cell_bits(), self.cell_of(position.reverse_bits()));
        self.cells[cell].taken += 1;
        if u64::from(self.cells[cell].lowest_free) == position >> bits {
            self.cells[cell].lowest_free = self.lowest_free_from(position);
        }
        true
    }

    /// False if it was not there.
    pub fn remove(&mut self, position: u64) -> bool {
        if !self.contains(position) {
            return false;
        }
        self.words[(position / 64) as usize] &= !(1 << (position % 64));
        self.len -= 1;
        let (bits, cell) = (self.cell_bits(), self.cell_of(position.reverse_bits()));
        let cell = &mut self.cells[cell];
        cell.taken -= 1;
        cell.lowest_free = cell.lowest_free.min((position >> bits) as u32);
        true
    }

    /// The lowest position below `limit` that is free and stands in one of `stretches`.
    pub(super) fn first_free(&self, stretches: &[Stretch], limit: u64) -> Option<u64> {
        let bits = self.cell_bits();
        let mut best = limit;
        for stretch in stretches {
            let (whole, parts) = self.cells_of(*stretch);
            for cell in whole {
                best = best.min(self.lowest_free_in(cell));
            }
            for cell in parts {
                let known = best.min(self.capacity());
                let mut candidates = (self.lowest_free_in(cell)..known).step_by(1 << bits);
                let free = candidates.find(|&at| !self.contains(at) && stretch.holds(at));
                best = free.unwrap_or(best);
            }
            best = stretch.lowest(self.capacity(), best).unwrap_or(best);
        }
        (best < limit).then_some(best)
    }

    /// How many taken positions stand in a stretch.
    pub(super) fn count_in(&self, stretch: Stretch) -> u64 {
        let (whole, parts) = self.cells_of(stretch);
        let counted: u64 = self.cells[whole].iter().map(|cell| u64::from(cell.taken)).sum();
        let checked = parts.into_iter().map(|cell| {
            let positions =
                (self.low_bits_of(cell)..self.capacity()).step_by(1 << self.cell_bits());
            positions.filter(|&at| self.contains(at) && stretch.holds(at)).count() as u64
        });
        counted + checked.sum::<u64>()
    }

    fn cell_bits(&self) -> u32 {
        self.cells.len().trailing_zeros()
    }

    fn cell_of(&self, reversed: u64) -> usize {
        reversed.checked_shr(64 - self.cell_bits()).unwrap_or(0) as usize
    }

    fn first_of(&self, cell: usize) -> u64 {
        (cell as u64).checked_shl(64 - self.cell_bits()).unwrap_or(0)
    }

    fn low_bits_of(&self, cell: usize) -> u64 {
        self.first_of(cell).reverse_bits()
    }

    fn lowest_free_in(&self, cell: usize) -> u64 {
        self.low_bits_of(cell) | (u64::from(self.cells[cell].lowest_free) << self.cell_bits())
    }

    /// The cells that lie wholly in a stretch, and those that it cuts.
    fn cells_of(&self, stretch: Stretch) -> (Range<usize>, SmallVec<[usize; 2]>) {
        let (mut from, mut until) = (self.cell_of(stretch.first), self.cell_of(stretch.last) + 1);
        let mut parts = SmallVec::new();
        if stretch.first != self.first_of(from) {
            parts.push(from);
            from += 1;
        }
        if from < until && stretch.last.wrapping_add(1) != self.first_of(until % self.cells.len()) {
            parts.push(until - 1);
            until -= 1;
        }
        (from..until.max(from), parts)
    }

    /// The first free position of a cell from `position` on, in steps: beyond the words all are.
    fn lowest_free_from(&self, mut position: u64) -> u32 {
        while self.contains(position) {
            position += 1 << self.cell_bits();
        }
        (position >> self.cell_bits()) as u32
    }

    /// The first position from `from` on whose bit differs from `flip`'s; if there is none, the
    /// first beyond the words.
    fn next_bit(&self, from: u64, flip: u64) -> u64 {
        let mut mask = u64::MAX << (from % 64);
        for (index, word) in self.words.iter().enumerate().skip((from / 64) as usize) {
            let found = (word ^ flip) & mask;
            if found != 0 {
                return index as u64 * 64 + u64::from(found.trailing_zeros());
            }
            mask = u64::MAX;
        }
        self.capacity()
    }

    fn capacity(&self) -> u64 {
        self.words.len() as u64 * 64
    }

    /// Makes room for a position.
    fn reach(&mut self, position: u64) {
        let words = (position as usize / 64 + 1).next_power_of_two();
        if words > self.words.len() {
            self.words.resize(words, 0);
            if self.fitting_cell_bits() != self.cell_bits() {
                self.fill_cells();
            }
        }
    }

    /// About half the bits of a position, so that there are as many cells as positions in one.
    fn fitting_cell_bits(&self) -> u32 {
        let bits = self.capacity().max(1).ilog2();
        if bits <= ONE_CELL_BITS { 0 } else { bits.div_ceil(2) }
    }

    fn fill_cells(&mut self) {
        self.cells = smallvec![Cell::default(); 1 << self.fitting_cell_bits()];
        let mut cells = self.cells.clone();
        for position in self.iter() {
            cells[self.cell_of(position.reverse_bits())].taken += 1;
        }
        for (index, cell) in cells.iter_mut().enumerate() {
            cell.lowest_free = self.lowest_free_from(self.low_bits_of(index));
        }
        self.cells = cells;
    }
}

impl Default for PositionSet {
    fn default() -> Self {
        Self { words: Vec::new(), len: 0, cells: smallvec![Cell::default()] }
    }
}

impl PartialEq for PositionSet {
    fn eq(&self, other: &Self) -> bool {
        let common = self.words.len().min(other.words.len());
        self.len == other.len && self.words[..common] == other.words[..common]
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
