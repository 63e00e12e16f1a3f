//! Many positions: a bit for each up to the highest.
//!
//! Keeps, for about √n cells, how many are taken and which is the lowest free one; both questions
//! a schedule asks then cost about √n steps, not n.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::{MAX_PLACES, Stretch};

/// Up to this many positions (as a power of two) one cell is enough.
const ONE_CELL_BITS: u32 = 8;

#[derive(Clone)]
pub(super) struct Bitmap {
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

impl Bitmap {
    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn contains(&self, position: u64) -> bool {
        let word = self.words.get((position / 64) as usize);
        word.is_some_and(|word| (word >> (position % 64)) & 1 == 1)
    }

    /// The first run of taken positions from `from` on.
    pub(super) fn next_run(&self, from: u64) -> Option<Range<u64>> {
        let start = self.next_bit(from, 0);
        let end = self.next_bit(start, u64::MAX);
        (start < end).then_some(start..end)
    }

    /// One past the highest.
    pub(super) fn end(&self) -> u64 {
        let last = self.words.iter().rposition(|word| *word != 0);
        last.map_or(0, |last| last as u64 * 64 + u64::from(64 - self.words[last].leading_zeros()))
    }

    pub(super) fn from_runs(runs: &[Range<u64>]) -> Self {
        let end = runs.last().map_or(0, |run| run.end);
        let mut words = vec![0; end.div_ceil(64) as usize];
        for run in runs {
            let (first, last) = ((run.start / 64) as usize, ((run.end - 1) / 64) as usize);
            let from_first = u64::MAX << (run.start % 64);
            let to_last = u64::MAX >> (63 - (run.end - 1) % 64);
            if first == last {
                words[first] |= from_first & to_last;
            } else {
                words[first] |= from_first;
                words[first + 1..last].fill(u64::MAX);
                words[last] |= to_last;
            }
        }
        Self::from_words(words)
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

    /// False if it was there.
    pub(super) fn insert(&mut self, position: u64) -> bool {
        if self.contains(position) {
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
    pub(super) fn remove(&mut self, position: u64) -> bool {
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

    /// Whether there is room for a position.
    pub(super) fn reaches(&self, position: u64) -> bool {
        position < self.capacity()
    }

    /// Makes room for a position.
    fn reach(&mut self, position: u64) {
        let words = words_for(position);
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
        let runs = std::iter::successors(self.next_run(0), |run| self.next_run(run.end));
        for position in runs.flatten() {
            cells[self.cell_of(position.reverse_bits())].taken += 1;
        }
        for (index, cell) in cells.iter_mut().enumerate() {
            cell.lowest_free = self.lowest_free_from(self.low_bits_of(index));
        }
        self.cells = cells;
    }
}

/// How many words a bitmap has that reaches a position.
pub(super) const fn words_for(position: u64) -> usize {
    (position as usize / 64 + 1).next_power_of_two()
}

impl Default for Bitmap {
    fn default() -> Self {
        Self { words: Vec::new(), len: 0, cells: smallvec![Cell::default()] }
    }
}
