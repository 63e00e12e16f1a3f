//! What a count stands under.

use std::hash::{Hash, Hasher};

/// A limit, and the values of the attributes it counts by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key<'a> {
    /// Tells the limit from all others.
    pub limit: u64,
    /// In the order of its `by`; each but the last with its length.
    pub values: &'a [u8],
}

impl<'a> Key<'a> {
    /// As [`Key::to_vec`] wrote it; `None` if it is too short for that.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (limit, values) = bytes.split_first_chunk()?;
        Some(Self { limit: u64::from_le_bytes(*limit), values })
    }

    /// As it is kept and sent: the limit, then the values.
    pub fn to_vec(self) -> Vec<u8> {
        [&self.limit.to_le_bytes(), self.values].concat()
    }
}

/// Nothing follows the values, so their length need not be hashed.
impl Hash for Key<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.limit);
        state.write(self.values);
    }
}
