//! What a schedule follows: windows of `per` from the epoch, `max` places in each, how they are
//! spread, how far ahead it may give them, and when it is open.
//!
//! Knows which instants a window has open and which windows can hold anything at all; not what has
//! been given.

use std::fmt;
use std::ops::Range;

use smallvec::smallvec;

use super::calendar::{Calendar, Ranges};
use super::places;
use super::positions::MAX_PLACES;
use crate::limit::MAX_PER;
use crate::time::{Instant, Span};

/// How far ahead places are given when nothing else is said.
pub const DEFAULT_HORIZON: Span = Span::from_secs(365 * 86_400);

/// The rules of one schedule.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    per: Span,
    max: u64,
    spread: Spread,
    horizon: Span,
    calendar: Option<Calendar>,
}

/// Where in its window an event stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Spread {
    /// Each position at the same offset in every window, so any interval of one window's length
    /// holds each position once at most.
    #[default]
    Even,
    /// Anywhere open, by chance: only each aligned window is bounded.
    Random,
}

/// Why there is no such plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadPlan {
    /// `per` is longer than [`MAX_PER`].
    PerTooLong,
    /// `max` is 0.
    NoPlaces,
    /// `max` is more than one place for each microsecond of `per`.
    MaxAbovePer,
    /// `max` is above [`MAX_PLACES`].
    TooManyPlaces,
    /// The horizon is longer than [`MAX_PER`].
    HorizonTooLong,
}

impl fmt::Display for BadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = MAX_PER.as_micros() / 86_400_000_000;
        match self {
            Self::PerTooLong => write!(f, "per must be at most {days} days"),
            Self::NoPlaces => f.write_str("max must be at least 1"),
            Self::MaxAbovePer => f.write_str("max must be at most 1 for each microsecond of per"),
            Self::TooManyPlaces => {
                write!(f, "max must be at most {MAX_PLACES}: use a shorter per for a higher rate")
            }
            Self::HorizonTooLong => write!(f, "horizon must be at most {days} days"),
        }
    }
}

impl std::error::Error for BadPlan {}

impl Plan {
    /// Spread evenly, always open, [`DEFAULT_HORIZON`].
    pub fn new(per: Span, max: u64) -> Result<Self, BadPlan> {
        match max {
            _ if per > MAX_PER => Err(BadPlan::PerTooLong),
            0 => Err(BadPlan::NoPlaces),
            _ if max > per.as_micros() as u64 => Err(BadPlan::MaxAbovePer),
            _ if max > MAX_PLACES => Err(BadPlan::TooManyPlaces),
            _ => Ok(Self {
                per,
                max,
                spread: Spread::Even,
                horizon: DEFAULT_HORIZON,
                calendar: None,
            }),
        }
    }

    #[must_use]
    pub fn with_spread(self, spread: Spread) -> Self {
        Self { spread, ..self }
    }

    pub fn with_horizon(self, horizon: Span) -> Result<Self, BadPlan> {
        if horizon > MAX_PER {
            return Err(BadPlan::HorizonTooLong);
        }
        Ok(Self { horizon, ..self })
    }

    #[must_use]
    pub fn with_calendar(self, calendar: Calendar) -> Self {
        Self { calendar: Some(calendar), ..self }
    }

    pub fn per(&self) -> Span {
        self.per
    }

    pub fn max(&self) -> u64 {
        self.max
    }

    pub fn spread(&self) -> Spread {
        self.spread
    }

    pub fn horizon(&self) -> Span {
        self.horizon
    }

    pub fn calendar(&self) -> Option<&Calendar> {
        self.calendar.as_ref()
    }

    /// The window that holds `at`.
    pub fn index_of(&self, at: Instant) -> i64 {
        at.as_micros().div_euclid(self.per.as_micros())
    }

    /// The start of a window, saturating at the ends of time.
    pub fn starts_at(&self, index: i64) -> Instant {
        Instant::from_micros(index.saturating_mul(self.per.as_micros()))
    }

    /// Whether the window lies in the decidable years; in no other is a place given.
    pub(super) fn considers(&self, index: i64) -> bool {
        (self.index_of(Instant::MIN.decidable())..=self.last()).contains(&index)
    }

    /// The instants that a request for `requested` may be given.
    pub(super) fn reach(&self, requested: Instant) -> Range<Instant> {
        requested..requested.plus(self.horizon).plus_micros(1)
    }

    /// The last window that a request for `requested` may be given a place in.
    pub(super) fn last_for(&self, requested: Instant) -> i64 {
        self.index_of(requested.plus(self.horizon)).min(self.last())
    }

    /// The last one that ends in the decidable years.
    fn last(&self) -> i64 {
        self.index_of(Instant::MAX.decidable()) - 1
    }

    /// The open parts of a window that lie within `reach`, for a window that [`Self::considers`].
    pub(super) fn open_ranges(&self, index: i64, reach: &Range<Instant>) -> Ranges {
        let starts_at = self.starts_at(index);
        let range = starts_at.max(reach.start)..starts_at.plus(self.per).min(reach.end);
        match &self.calendar {
            _ if range.is_empty() => Ranges::new(),
            None => smallvec![range],
            Some(calendar) => calendar.open_ranges(range),
        }
    }

    /// The first window from `index` to `last` that, when empty, has a place.
    pub(super) fn next_with_places(&self, mut index: i64, last: i64) -> Option<i64> {
        while index <= last {
            let Some(calendar) = &self.calendar else { return Some(index) };
            let open = calendar.next_open(self.starts_at(index)..self.starts_at(last + 1))?;
            index = self.index_of(open);
            if places::has_places(self, index) {
                return Some(index);
            }
            index += 1;
        }
        None
    }

    /// The end of the run that begins with a full window: over all that follow it and have no
    /// place even when empty (closed nights, say), as far as anyone who asks in it may see.
    pub(super) fn run_end(&self, full: i64) -> i64 {
        let last = self.last_for(self.starts_at(full + 1));
        self.next_with_places(full + 1, last).unwrap_or(last + 1)
    }
}
