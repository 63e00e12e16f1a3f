//! What a count stands under.

use std::hash::{Hash, Hasher};

/// A limit, and the values of the attributes it counts by.
#[derive(Clone, Copy, Eq, PartialOrd, Ord, Debug)]
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

impl PartialEq for Key<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.limit == other.limit && is_same(self.values, other.values)
    }
}

/// Compares what is mostly short, and then a few words: the library's comparison is a call, and one of
/// nothing at all took it 70 ns, for it looked (with everything masked out) at where an empty slice
/// does not point to.
#[inline]
pub fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    match one.len() {
        0 => true,
        1..=3 => ends::<1>(one) == ends(other) && one[one.len() / 2] == other[one.len() / 2],
        4..=7 => ends::<4>(one) == ends(other),
        8..=16 => ends::<8>(one) == ends(other),
        17..=32 => ends::<16>(one) == ends(other),
        _ => one == other,
    }
}

/// The first and the last bytes, which may overlap.
#[inline]
fn ends<const N: usize>(bytes: &[u8]) -> Option<(&[u8; N], &[u8; N])> {
    Some((bytes.first_chunk()?, bytes.last_chunk()?))
}

/// Nothing follows the values, so their length need not be hashed.
impl Hash for Key<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.limit);
        state.write(self.values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_equal_only_if_every_byte_is() {
        for length in 0..=70 {
            let values: Vec<u8> = (0..length).collect();
            let key = Key { limit: 7, values: &values };
            assert_eq!(key, Key { limit: 7, values: &values.clone() });
            assert_ne!(key, Key { limit: 8, values: &values });
            assert_ne!(key, Key { limit: 7, values: &[&*values, &[length]].concat() });
            for position in 0..values.len() {
                let mut other = values.clone();
                other[position] ^= 1;
                assert_ne!(key, Key { limit: 7, values: &other }, "{length}: {position}");
            }
        }
    }
}
