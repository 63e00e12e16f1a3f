//! Numbers in no order, the same ones each time.

/// xorshift64: any disorder will do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disorder(u64);

impl Disorder {
    /// One of many that differ.
    pub(crate) fn number(number: usize) -> Self {
        Self(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(number as u64 + 1))
    }

    /// The next number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
