//! A part of every window, and which positions stand in it.

use super::MAX_PLACES;

/// A part of every window: the reversed positions from `first` to `last`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::schedule) struct Stretch {
    pub(in crate::schedule) first: u64,
    pub(in crate::schedule) last: u64,
}

impl Stretch {
    pub(in crate::schedule) const WHOLE: Self = Self { first: 0, last: u64::MAX };

    pub(super) fn holds(self, position: u64) -> bool {
        (self.first..=self.last).contains(&position.reverse_bits())
    }

    /// The lowest position from `from` on that stands here; none if it is not below `limit`.
    pub(super) fn lowest(self, from: u64, limit: u64) -> Option<u64> {
        if from >= limit || (from == 0 && self.first == 0) {
            return (from < limit).then_some(from);
        }
        self.nth(self.count_below(from)).filter(|position| *position < limit)
    }

    /// How many positions below `position` stand here.
    pub(super) fn count_below(self, position: u64) -> u64 {
        let mut counted = 0;
        let mut rest = position;
        while rest != 0 {
            let bits = rest.trailing_zeros();
            rest &= rest - 1;
            counted += self.count_of(rest, bits);
        }
        counted
    }

    /// The position that has so many below it that stand here; none beyond the last place.
    pub(super) fn nth(self, mut below: u64) -> Option<u64> {
        let mut position = 0;
        for bits in (0..MAX_PLACES.ilog2()).rev() {
            let lower = self.count_of(position, bits);
            if below >= lower {
                below -= lower;
                position |= 1 << bits;
            }
        }
        (below == 0 && self.holds(position)).then_some(position)
    }

    /// How many of the `2^bits` positions from `start`, a multiple of that, stand here: reversed
    /// they are a fixed step apart.
    fn count_of(self, start: u64, bits: u32) -> u64 {
        let first = start.reverse_bits();
        let up_to = |last: u64| {
            last.checked_sub(first).map_or(0, |ahead| ahead.checked_shr(64 - bits).unwrap_or(0) + 1)
        };
        up_to(self.last) - self.first.checked_sub(1).map_or(0, up_to)
    }
}
