//! Small whole numbers that say what they may be when something else comes. Whether one is too large
//! is the relay's to judge.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// A number of which `MAX` is the largest that makes sense.
#[derive(Clone, Copy)]
pub(super) struct Whole<const MAX: u8>(pub(super) u8);

impl<'de, const MAX: u8> Deserialize<'de> for Whole<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u8(Bounded::<MAX>).map(Self)
    }
}

struct Bounded<const MAX: u8>;

impl<const MAX: u8> Visitor<'_> for Bounded<MAX> {
    type Value = u8;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {MAX}")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u8, E> {
        Err(E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u8, E> {
        u8::try_from(number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }
}
