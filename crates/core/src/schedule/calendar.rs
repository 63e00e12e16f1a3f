//! When a schedule may use time: open hours by weekday in a zone, closed dates, blackouts.
//!
//! An instant is open when its own local date and time of day are. So a local time that a zone
//! skips is nowhere, one that it repeats is open (or closed) both times, and days of 23 and 25
//! hours need no rule of their own. Outside the years 1 to 9998 everything is closed.
//!
//! Deliberately not here: hours across midnight (each of the two days has its part), dates that
//! recur, and knowledge of any country's holidays.

use std::ops::{ControlFlow, Range};

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::{Offset, TimeZone};
use smallvec::SmallVec;

use crate::time::{Instant, Span};

const SECOND: Span = Span::from_secs(1);
const DAY_MICROS: i64 = 86_400_000_000;
/// The epoch was a Thursday.
const EPOCH_WEEKDAY: i64 = 3;

/// Half-open ranges of instants, in order and apart.
pub type Ranges = SmallVec<[Range<Instant>; 4]>;

/// Open hours, closed dates and blackouts. One that says nothing more than its zone is always open.
#[derive(Clone, PartialEq, Debug)]
pub struct Calendar {
    zone: TimeZone,
    /// From Monday; in order and apart within a day. `None`: no hours were given, all are open.
    week: Option<[Vec<Hours>; 7]>,
    /// Local days since the epoch, in order.
    closed: Vec<i64>,
    /// In order and apart.
    blackouts: Vec<Range<Instant>>,
}

/// A part of a local day: from one time of day up to, not including, another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hours {
    from_micros: i64,
    until_micros: i64,
}

impl Hours {
    const ALL_DAY: Self = Self { from_micros: 0, until_micros: DAY_MICROS };

    /// Seconds after midnight, the end at most 86,400; `None` for an empty or longer range.
    pub fn from_secs(secs: Range<u32>) -> Option<Self> {
        let from_micros = i64::from(secs.start) * SECOND.as_micros();
        let until_micros = i64::from(secs.end) * SECOND.as_micros();
        let valid = from_micros < until_micros && until_micros <= DAY_MICROS;
        valid.then_some(Self { from_micros, until_micros })
    }

    /// `09:00-17:00`, also `00:00-24:00`.
    pub fn parse(text: &str) -> Option<Self> {
        let (from, until) = text.split_once('-')?;
        Self::from_secs(secs_of_day(from)?..secs_of_day(until)?)
    }
}

fn secs_of_day(text: &str) -> Option<u32> {
    let two_digits = |text: &str| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        if digits { text.parse::<u32>().ok() } else { None }
    };
    let (hours, minutes) = text.trim().split_once(':')?;
    let (hours, minutes) = (two_digits(hours)?, two_digits(minutes)?);
    (minutes < 60).then_some(hours * 3600 + minutes * 60)
}

impl Calendar {
    /// Open at all times, until more is said.
    pub fn new(zone: TimeZone) -> Self {
        Self { zone, week: None, closed: Vec::new(), blackouts: Vec::new() }
    }

    /// Opens these hours of a weekday. With the first of them, everything not named is closed.
    #[must_use]
    pub fn open(mut self, weekday: Weekday, hours: Hours) -> Self {
        let week = self.week.get_or_insert_default();
        let day = &mut week[weekday.to_monday_zero_offset() as usize];
        day.push(hours);
        day.sort_by_key(|hours| hours.from_micros);
        day.dedup_by(|next, before| {
            let touch = next.from_micros <= before.until_micros;
            if touch {
                before.until_micros = before.until_micros.max(next.until_micros);
            }
            touch
        });
        self
    }

    /// Closes a whole local day.
    #[must_use]
    pub fn closed(mut self, date: Date) -> Self {
        // An error only beyond the last decidable year, where all is closed anyhow.
        if let Ok(midnight) = Offset::UTC.to_timestamp(date.to_datetime(Time::midnight())) {
            let day = Instant::from_jiff(midnight).as_micros().div_euclid(DAY_MICROS);
            if let Err(place) = self.closed.binary_search(&day) {
                self.closed.insert(place, day);
            }
        }
        self
    }

    /// Closes a range of instants; an empty one closes nothing.
    #[must_use]
    pub fn blackout(mut self, range: Range<Instant>) -> Self {
        if !range.is_empty() {
            self.blackouts.push(range);
            self.blackouts.sort_by_key(|range| range.start);
            self.blackouts.dedup_by(|next, before| {
                let touch = next.start <= before.end;
                if touch {
                    before.end = before.end.max(next.end);
                }
                touch
            });
        }
        self
    }

    /// The open parts of a range.
    pub fn open_ranges(&self, range: Range<Instant>) -> Ranges {
        let mut found = Ranges::new();
        let _ = self.each_open(range, |open| {
            match found.last_mut() {
                Some(last) if last.end == open.start => last.end = open.end,
                _ => found.push(open),
            }
            ControlFlow::Continue(())
        });
        found
    }

    /// The first open instant of a range.
    pub fn next_open(&self, range: Range<Instant>) -> Option<Instant> {
        let mut found = None;
        let _ = self.each_open(range, |open| {
            found = Some(open.start);
            ControlFlow::Break(())
        });
        found
    }

    /// Visits the open parts in order, none empty; neighbours may touch. Costs a step for each
    /// local day of the range, and none for what one blackout covers.
    fn each_open(
        &self,
        range: Range<Instant>,
        mut visit: impl FnMut(Range<Instant>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (mut at, end) = (range.start.decidable(), range.end.decidable());
        while at < end {
            let (offset_micros, same_until) = self.offset_from(at);
            let same_until = same_until.min(end);
            while at < same_until {
                if let Some(blackout) = self.blackouts.get(self.blackouts_before(at))
                    && blackout.contains(&at)
                {
                    at = blackout.end;
                    continue;
                }
                let day = (at.as_micros() + offset_micros).div_euclid(DAY_MICROS);
                let midnight = Instant::from_micros(day * DAY_MICROS - offset_micros);
                let day_end = midnight.plus_micros(DAY_MICROS).min(same_until);
                for hours in self.hours_of(day) {
                    let from = midnight.plus_micros(hours.from_micros).max(at);
                    let until = midnight.plus_micros(hours.until_micros).min(day_end);
                    self.each_outside_blackouts(from..until, &mut visit)?;
                }
                at = day_end;
            }
        }
        ControlFlow::Continue(())
    }

    fn each_outside_blackouts(
        &self,
        mut open: Range<Instant>,
        visit: &mut impl FnMut(Range<Instant>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let later = self.blackouts.iter().skip(self.blackouts_before(open.start));
        for blackout in later.take_while(|blackout| blackout.start < open.end) {
            if open.start < blackout.start {
                visit(open.start..blackout.start)?;
            }
            open.start = blackout.end;
        }
        if open.is_empty() { ControlFlow::Continue(()) } else { visit(open) }
    }

    /// How many blackouts have ended at `at`.
    fn blackouts_before(&self, at: Instant) -> usize {
        self.blackouts.partition_point(|blackout| blackout.end <= at)
    }

    fn hours_of(&self, day: i64) -> &[Hours] {
        if self.closed.binary_search(&day).is_ok() {
            return &[];
        }
        match &self.week {
            None => &[Hours::ALL_DAY],
            Some(week) => &week[(day + EPOCH_WEEKDAY).rem_euclid(7) as usize],
        }
    }

    /// Local time minus UTC at `at`, and the instant up to which that cannot change.
    ///
    /// Offsets change at whole seconds. Asked for a fraction of one before 1970, jiff answers for
    /// the second after it, so it is asked for whole ones.
    fn offset_from(&self, at: Instant) -> (i64, Instant) {
        let second = at.floor_to(SECOND).to_jiff();
        let offset = self.zone.to_offset(second);
        let change = self.zone.following(second).next();
        let until = change.map_or(Instant::MAX, |change| Instant::from_jiff(change.timestamp()));
        (i64::from(offset.seconds()) * SECOND.as_micros(), until)
    }
}
