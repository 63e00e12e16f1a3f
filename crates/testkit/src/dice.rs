//! Chance that a seed repeats.

/// Splitmix64: small, and good enough to be cruel with.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The same numbers throw the same dice.
    pub(crate) fn of(numbers: &[u64]) -> Self {
        let mut dice = Self(0);
        for number in numbers {
            dice.0 ^= *number;
            dice.0 = dice.number();
        }
        dice
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let place = usize::try_from(self.below(from.len() as u64)).expect("less than a length");
        from[place]
    }
}
