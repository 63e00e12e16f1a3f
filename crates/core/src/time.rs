//! Instants and spans: integer microseconds, saturating at the ends of `i64`.
//!
//! Nothing here reads a clock; `now` is always an argument.

use std::fmt;

/// A point in time: microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(i64);

/// A length of time in microseconds, at least one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span(i64);

impl Instant {
    pub const MIN: Self = Self(i64::MIN);
    pub const MAX: Self = Self(i64::MAX);

    /// The years 1 to 9998: decisions are made inside them, so that no window or wait they add
    /// can run into the ends of `i64` or of the calendar. Outside, the nearer end stands for `now`.
    const FIRST_DECIDABLE: Self = Self::from_secs(-62_135_596_800);
    const LAST_DECIDABLE: Self = Self::from_secs(253_370_764_800);

    pub(crate) fn decidable(self) -> Self {
        self.clamp(Self::FIRST_DECIDABLE, Self::LAST_DECIDABLE)
    }

    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    pub const fn as_micros(self) -> i64 {
        self.0
    }

    pub const fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    pub const fn minus(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    pub const fn plus_micros(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// Microseconds from `earlier` to `self`; negative when it is the other way round.
    pub const fn micros_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Whole seconds from `earlier` to `self`, rounded up, never below zero.
    pub const fn whole_secs_since(self, earlier: Self) -> u64 {
        let micros = self.micros_since(earlier);
        if micros <= 0 { 0 } else { (micros as u64).div_ceil(1_000_000) }
    }

    /// The last multiple of `span` from the epoch that is not after `self`.
    pub const fn floor_to(self, span: Span) -> Self {
        Self(self.0.saturating_sub(self.0.rem_euclid(span.0)))
    }
}

impl fmt::Display for Instant {
    /// RFC 3339 in UTC with six digits; instants outside years −9999…9999 show as the nearest one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.to_jiff())
    }
}

impl Instant {
    /// The same instant for calendar arithmetic, clamped to the years jiff knows.
    pub fn to_jiff(self) -> jiff::Timestamp {
        jiff::Timestamp::from_microsecond(self.0).unwrap_or(if self.0 < 0 {
            jiff::Timestamp::MIN
        } else {
            jiff::Timestamp::MAX
        })
    }

    /// Rounds a finer timestamp down to the microsecond.
    pub fn from_jiff(timestamp: jiff::Timestamp) -> Self {
        Self(timestamp.as_nanosecond().div_euclid(1_000) as i64)
    }
}

impl Span {
    /// `None` below one microsecond.
    pub const fn from_micros(micros: i64) -> Option<Self> {
        if micros >= 1 { Some(Self(micros)) } else { None }
    }

    /// Panics below one second: for constants.
    pub const fn from_secs(secs: i64) -> Self {
        assert!(secs >= 1, "a span is at least one microsecond");
        Self(secs.saturating_mul(1_000_000))
    }

    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Whole seconds, rounded up.
    pub const fn as_secs_ceil(self) -> u64 {
        (self.0 as u64).div_ceil(1_000_000)
    }
}
