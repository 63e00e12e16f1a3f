//! Windows of the `fixed` algorithm: a span counted from the epoch, or a calendar unit in a zone.
//!
//! Every instant lies in exactly one window, also around a change of a zone's offset.

use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::time::{Instant, Span};

/// How time is cut into windows.
#[derive(Clone, PartialEq, Debug)]
pub enum Window {
    /// Windows of this length, aligned to the epoch.
    Span(Span),
    /// Calendar windows in a zone.
    Calendar(Unit, TimeZone),
}

/// A calendar unit. Weeks begin on Monday.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unit {
    Minute,
    Hour,
    Day,
    Week,
    Month,
}

impl Unit {
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "minute" => Self::Minute,
            "hour" => Self::Hour,
            "day" => Self::Day,
            "week" => Self::Week,
            "month" => Self::Month,
            _ => return None,
        })
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }
}

/// One window: from `starts_at` up to, not including, `ends_at`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub starts_at: Instant,
    pub ends_at: Instant,
}

impl Window {
    /// The window that holds `at`.
    pub fn bounds(&self, at: Instant) -> Bounds {
        match self {
            Self::Span(span) => {
                let starts_at = at.floor_to(*span);
                Bounds { starts_at, ends_at: starts_at.plus(*span) }
            }
            Self::Calendar(Unit::Minute, zone) => clock_bounds(at, Span::from_secs(60), zone),
            Self::Calendar(Unit::Hour, zone) => clock_bounds(at, Span::from_secs(3600), zone),
            Self::Calendar(unit, zone) => date_bounds(at, *unit, zone),
        }
    }

    /// The start of the window that ends at `ends_at`.
    pub fn start_before(&self, ends_at: Instant) -> Instant {
        match self {
            Self::Span(span) => ends_at.minus(*span),
            Self::Calendar(..) => self.bounds(ends_at.plus_micros(-1)).starts_at,
        }
    }
}

/// Minutes and hours of local time. A change of offset that is not a whole number of them
/// (Lord Howe's half hour) cuts the window it falls into in two.
fn clock_bounds(at: Instant, unit: Span, zone: &TimeZone) -> Bounds {
    let offset = offset_at(zone, at);
    let offset_micros = i64::from(offset.seconds()) * 1_000_000;
    let starts_at = at.plus_micros(offset_micros).floor_to(unit).plus_micros(-offset_micros);
    let mut bounds = Bounds { starts_at, ends_at: starts_at.plus(unit) };
    if offset_at(zone, bounds.starts_at) != offset
        && let Some(change) = change_before(zone, at)
    {
        bounds.starts_at = bounds.starts_at.max(change);
    }
    if offset_at(zone, bounds.ends_at.plus_micros(-1)) != offset
        && let Some(change) = zone.following(second_of(at)).next()
    {
        bounds.ends_at = bounds.ends_at.min(Instant::from_jiff(change.timestamp()));
    }
    bounds
}

/// Offsets change at whole seconds. Asked for a fraction of one before 1970, jiff answers for the
/// second after it, so it is asked for whole ones.
fn second_of(at: Instant) -> jiff::Timestamp {
    at.floor_to(Span::from_secs(1)).to_jiff()
}

fn offset_at(zone: &TimeZone, at: Instant) -> jiff::tz::Offset {
    zone.to_offset(second_of(at))
}

/// The last change of offset not after `at`.
fn change_before(zone: &TimeZone, at: Instant) -> Option<Instant> {
    let next_second = second_of(at.plus(Span::from_secs(1)));
    zone.preceding(next_second).next().map(|change| Instant::from_jiff(change.timestamp()))
}

/// Days, weeks and months: each begins when its first date begins in the zone, so a date that
/// local time visits twice (a change of offset just after midnight) still makes one window.
fn date_bounds(at: Instant, unit: Unit, zone: &TimeZone) -> Bounds {
    let mut first = first_date(unit, offset_at(zone, at).to_datetime(second_of(at)).date());
    let mut starts_at = date_start(first, zone);
    while starts_at > at
        && let Some(before) = first_date_before(unit, first)
    {
        first = before;
        starts_at = date_start(first, zone);
    }
    loop {
        let Some(next) = first_date_after(unit, first) else {
            return Bounds { starts_at, ends_at: Instant::MAX };
        };
        let ends_at = date_start(next, zone);
        if at < ends_at {
            return Bounds { starts_at: starts_at.min(at), ends_at };
        }
        first = next;
        starts_at = ends_at;
    }
}

/// Midnight; where local time skips it, the moment of the skip.
fn date_start(date: Date, zone: &TimeZone) -> Instant {
    let midnight = zone.to_ambiguous_timestamp(date.to_datetime(jiff::civil::Time::midnight()));
    let in_gap = matches!(midnight.offset(), jiff::tz::AmbiguousOffset::Gap { .. });
    // An error only beyond the last date jiff can represent.
    let Ok(timestamp) = midnight.compatible() else { return Instant::MAX };
    let starts_at = Instant::from_jiff(timestamp);
    if in_gap { change_before(zone, starts_at).unwrap_or(starts_at) } else { starts_at }
}

fn first_date(unit: Unit, date: Date) -> Date {
    match unit {
        Unit::Month => date.first_of_month(),
        Unit::Week => {
            let days_since_monday = i64::from(date.weekday().to_monday_zero_offset());
            date.saturating_sub(jiff::Span::new().days(days_since_monday))
        }
        Unit::Day | Unit::Hour | Unit::Minute => date,
    }
}

fn step(unit: Unit) -> jiff::Span {
    match unit {
        Unit::Month => jiff::Span::new().months(1),
        Unit::Week => jiff::Span::new().weeks(1),
        Unit::Day | Unit::Hour | Unit::Minute => jiff::Span::new().days(1),
    }
}

fn first_date_after(unit: Unit, first: Date) -> Option<Date> {
    first.checked_add(step(unit)).ok()
}

fn first_date_before(unit: Unit, first: Date) -> Option<Date> {
    first.checked_sub(step(unit)).ok()
}
