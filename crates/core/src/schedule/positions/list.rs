//! Few positions: a sorted list of them.
//!
//! Both questions a schedule asks cost a look at each; see [`super::PositionSet`] for how many
//! there may be.

use std::ops::Range;

use super::Stretch;

#[derive(Clone, Default)]
pub(super) struct List(Vec<u32>);

impl List {
    pub(super) fn from_runs(runs: impl Iterator<Item = Range<u64>>) -> Self {
        Self(runs.flatten().map(|position| position as u32).collect())
    }

    pub(super) const fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub(super) fn contains(&self, position: u64) -> bool {
        self.place_of(position).is_ok()
    }

    /// The first run of taken positions from `from` on.
    pub(super) fn next_run(&self, from: u64) -> Option<Range<u64>> {
        let index = self.place_of(from).unwrap_or_else(|index| index);
        let start = u64::from(*self.0.get(index)?);
        let run = (start..).zip(&self.0[index..]);
        let length = run.take_while(|(expected, at)| *expected == u64::from(**at)).count();
        Some(start..start + length as u64)
    }

    /// One past the highest.
    pub(super) fn end(&self) -> u64 {
        self.0.last().map_or(0, |last| u64::from(*last) + 1)
    }

    /// False if it was there.
    pub(super) fn insert(&mut self, position: u64) -> bool {
        let place = self.place_of(position);
        if let Err(index) = place {
            self.0.insert(index, position as u32);
        }
        place.is_err()
    }

    /// False if it was not there.
    pub(super) fn remove(&mut self, position: u64) -> bool {
        let place = self.place_of(position);
        if let Ok(index) = place {
            self.0.remove(index);
        }
        place.is_ok()
    }

    /// The lowest position below `limit` that is free and stands in one of `stretches`.
    pub(super) fn first_free(&self, stretches: &[Stretch], limit: u64) -> Option<u64> {
        let free = stretches.iter().filter_map(|stretch| {
            let taken: Vec<u64> = self.standing_in(*stretch).collect();
            // As long as no free one is below, the first has none below it, the second one …
            let (mut low, mut high) = (0, taken.len());
            while low < high {
                let middle = low.midpoint(high);
                if stretch.count_below(taken[middle]) == middle as u64 {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            stretch.nth(low as u64)
        });
        free.min().filter(|position| *position < limit)
    }

    /// How many taken positions stand in a stretch.
    pub(super) fn count_in(&self, stretch: Stretch) -> u64 {
        self.standing_in(stretch).count() as u64
    }

    fn standing_in(&self, stretch: Stretch) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().map(|at| u64::from(*at)).filter(move |at| stretch.holds(*at))
    }

    fn place_of(&self, position: u64) -> Result<usize, usize> {
        self.0.binary_search_by_key(&position, |at| u64::from(*at))
    }
}
