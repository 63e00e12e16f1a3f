//! What the tests of schedules share: an oracle that keeps a list of slots and finds each place by
//! trying every window and every position, asking jiff for the civil time of each instant. It
//! shares no code and no method with the scheduler.

#![allow(dead_code, reason = "every test binary uses its own part of this")]

use std::ops::Range;

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use proptest::prelude::*;
use tollgate_core::schedule::{Calendar, Hours, Place, Plan, Schedule, Spread, WindowState};
use tollgate_core::{Instant, Span};

pub(crate) const SECOND: i64 = 1_000_000;
pub(crate) const MINUTE: i64 = 60 * SECOND;
pub(crate) const HOUR: i64 = 60 * MINUTE;
pub(crate) const DAY: i64 = 24 * HOUR;

pub(crate) fn at(micros: i64) -> Instant {
    Instant::from_micros(micros)
}

pub(crate) fn span(micros: i64) -> Span {
    Span::from_micros(micros).expect("at least one microsecond")
}

pub(crate) fn instant(text: &str) -> Instant {
    Instant::from_jiff(text.parse().expect("an RFC 3339 instant"))
}

pub(crate) fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).expect("in the bundled database")
}

pub(crate) fn plan(per: i64, max: u64) -> Plan {
    Plan::new(span(per), max).expect("a valid plan")
}

/// Counts a slot that exists and was given under another `per`.
pub(crate) fn add_guest(schedule: &mut Schedule, at: Instant) {
    let index = schedule.plan().index_of(at);
    let mut state = schedule.window(index).cloned().unwrap_or_default();
    state.guests += 1;
    schedule.put_window(index, state);
}

/// A calendar as a test says it: minutes of the day, whole dates, ranges in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) zone: &'static str,
    pub(crate) open: Vec<(Weekday, Range<u32>)>,
    pub(crate) closed: Vec<Date>,
    pub(crate) blackouts: Vec<Range<i64>>,
}

impl Rules {
    pub(crate) fn calendar(&self) -> Calendar {
        let mut calendar = Calendar::new(zone(self.zone));
        for (weekday, minutes) in &self.open {
            let hours = Hours::from_secs(minutes.start * 60..minutes.end * 60);
            calendar = calendar.open(*weekday, hours.expect("a range within a day"));
        }
        for date in &self.closed {
            calendar = calendar.closed(*date);
        }
        for range in &self.blackouts {
            calendar = calendar.blackout(at(range.start)..at(range.end));
        }
        calendar
    }

    /// Asks jiff for the local date and time. Hours begin and end with whole minutes, so whole
    /// seconds are exact enough; and jiff is exact for them also before 1970.
    pub(crate) fn is_open(&self, micros: i64) -> bool {
        let second = jiff::Timestamp::from_second(micros.div_euclid(SECOND)).expect("in range");
        let local = zone(self.zone).to_datetime(second);
        let minute = local.hour() as u32 * 60 + local.minute() as u32;
        let in_hours = self.open.is_empty()
            || self
                .open
                .iter()
                .any(|(weekday, minutes)| *weekday == local.weekday() && minutes.contains(&minute));
        in_hours
            && !self.closed.contains(&local.date())
            && !self.blackouts.iter().any(|range| range.contains(&micros))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) at: i64,
    /// `None`: given under another `per`.
    pub(crate) position: Option<u64>,
    /// Under which it was given.
    pub(crate) max: u64,
}

/// The oracle.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) per: i64,
    pub(crate) max: u64,
    pub(crate) spread: Spread,
    pub(crate) horizon: i64,
    pub(crate) rules: Option<Rules>,
    pub(crate) slots: Vec<Slot>,
}

impl Model {
    pub(crate) fn plan(&self) -> Plan {
        let plan = plan(self.per, self.max).with_spread(self.spread);
        let plan = plan.with_horizon(span(self.horizon)).expect("a valid horizon");
        match &self.rules {
            None => plan,
            Some(rules) => plan.with_calendar(rules.calendar()),
        }
    }

    pub(crate) fn is_open(&self, micros: i64) -> bool {
        self.rules.as_ref().is_none_or(|rules| rules.is_open(micros))
    }

    fn inside(&self, window: i64) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(move |slot| slot.at.div_euclid(self.per) == window)
    }

    fn is_taken(&self, window: i64, position: u64) -> bool {
        self.inside(window).any(|slot| slot.position == Some(position))
    }

    /// The first place in a window for a request, by trying them all. With a random spread, its
    /// position and any instant it could have.
    pub(crate) fn place_in(&self, window: i64, requested: i64, latest: i64) -> Option<(u64, i64)> {
        let (start, end) = (window * self.per, (window + 1) * self.per);
        let count = self.inside(window).count() as u64;
        if count >= self.max {
            return None;
        }
        if requested > start {
            let rest = self.inside(window).filter(|slot| match self.spread {
                Spread::Even => slot.position.is_some() && slot.at >= requested,
                Spread::Random => true,
            });
            let share = i128::from(self.max) * i128::from(end - requested) / i128::from(self.per);
            if rest.count() as i128 >= share {
                return None;
            }
        }
        let usable = |micros: i64| {
            micros >= requested && micros <= latest && micros < end && self.is_open(micros)
        };
        match self.spread {
            Spread::Even => (0..self.max)
                .map(|position| (position, start + offset(self.per, position)))
                .find(|&(position, at)| usable(at) && !self.is_taken(window, position)),
            Spread::Random => {
                let from = start.max(requested);
                let minutes = (from.div_euclid(MINUTE) + 1..=end.div_euclid(MINUTE))
                    .map(|minute| minute * MINUTE);
                let micros = std::iter::once(from).chain(minutes).find(|at| usable(*at))?;
                let position = (0..self.max).find(|position| !self.is_taken(window, *position));
                Some((position.expect("fewer than max are taken"), micros))
            }
        }
    }

    /// Window, position and instant, or none up to the horizon.
    pub(crate) fn expected(&self, requested: i64) -> Option<(i64, u64, i64)> {
        let first = requested.div_euclid(self.per);
        let latest = requested + self.horizon;
        (first..).take_while(|window| window * self.per <= latest).find_map(|window| {
            let (position, at) = self.place_in(window, requested, latest)?;
            Some((window, position, at))
        })
    }

    /// The schedule's answer is the right one; keeps it.
    pub(crate) fn check(&mut self, requested: i64, place: Option<Place>) {
        let expected = self.expected(requested);
        match self.spread {
            Spread::Even => {
                let place = place.map(|place| (place.window, place.position, place.at.as_micros()));
                assert_eq!(place, expected, "asked for {requested}");
            }
            Spread::Random => {
                let place_of = |place: Place| (place.window, place.position);
                let expected = expected.map(|(window, position, _)| (window, position));
                assert_eq!(place.map(place_of), expected, "asked for {requested}");
            }
        }
        if let Some(place) = place {
            let micros = place.at.as_micros();
            assert!(micros >= requested, "{micros} is before {requested}");
            assert!(micros <= requested + self.horizon, "{micros} is beyond {requested}'s horizon");
            assert_eq!(micros.div_euclid(self.per), place.window);
            assert!(self.is_open(micros), "{} is closed", place.at);
            self.slots.push(Slot { at: micros, position: Some(place.position), max: self.max });
        }
    }

    /// Windows hold no more than the largest max a slot in them was given under (or than they
    /// held before `per` changed); with an even spread so does any interval of that length.
    pub(crate) fn assert_bounds(&self) {
        for slot in &self.slots {
            let window = slot.at.div_euclid(self.per);
            let inside: Vec<&Slot> = self.inside(window).collect();
            let guests = inside.iter().filter(|slot| slot.position.is_none()).count() as u64;
            let max = inside.iter().filter(|slot| slot.position.is_some()).map(|slot| slot.max);
            assert!(inside.len() as u64 <= max.max().unwrap_or(0).max(guests), "{inside:?}");

            if self.spread == Spread::Even {
                for from in [slot.at, slot.at - self.per + 1] {
                    let own = self.slots.iter().filter(|slot| slot.position.is_some());
                    let near = own.filter(|near| (from..from + self.per).contains(&near.at));
                    let maxima: Vec<u64> = near.map(|slot| slot.max).collect();
                    let max = maxima.iter().max().copied().unwrap_or(0);
                    assert!(maxima.len() as u64 <= max, "{} from {from}", maxima.len());
                }
            }
        }
    }

    /// Counts equal slots; a run holds no window with a place, begins with a full one that could
    /// have places, and misses none such; and the schedule equals one loaded from its bytes.
    pub(crate) fn assert_state(&self, schedule: &Schedule) {
        for (index, state) in schedule.windows() {
            let own = self.inside(index).filter_map(|slot| slot.position);
            assert_eq!(state.taken, own.collect(), "window {index}");
            assert_eq!(state.count(), self.inside(index).count() as u64);
        }
        let known: u64 = schedule.windows().map(|(_, state)| state.count()).sum();
        assert_eq!(known, self.slots.len() as u64);

        let runs: Vec<Range<i64>> = schedule.full_runs().collect();
        let empty = Self { slots: Vec::new(), ..self.clone() };
        let is_full = |index| {
            let start = index * self.per;
            self.place_in(index, start, i64::MAX).is_none()
                && empty.place_in(index, start, i64::MAX).is_some()
        };
        for run in &runs {
            assert!(is_full(run.start), "the run {run:?} begins with a window that is not full");
            for index in run.clone().take(50).chain(run.end - 1..run.end) {
                assert!(
                    self.place_in(index, index * self.per, i64::MAX).is_none(),
                    "{index} in {run:?}"
                );
            }
        }
        for (index, _) in schedule.windows() {
            let in_run = runs.iter().any(|run| run.contains(&index));
            assert!(in_run || !is_full(index), "{index} is full and in no run of {runs:?}");
        }
        assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start), "{runs:?} touch");
        assert_same(schedule, &reloaded(schedule));
    }
}

/// The van der Corput sequence by its definition: the digits of the position, mirrored at the
/// binary point.
pub(crate) fn offset(per: i64, position: u64) -> i64 {
    let (mut numerator, mut denominator, mut digits) = (0i128, 1i128, position);
    while digits > 0 {
        numerator = numerator * 2 + i128::from(digits % 2);
        denominator *= 2;
        digits /= 2;
    }
    (i128::from(per) * numerator / denominator) as i64
}

/// Through bytes and back.
pub(crate) fn reloaded(schedule: &Schedule) -> Schedule {
    let windows = schedule.windows().map(|(index, state)| {
        (index, WindowState::decode(&state.encode()).expect("what it encoded itself"))
    });
    Schedule::load(schedule.plan().clone(), windows.collect::<Vec<_>>())
}

#[track_caller]
pub(crate) fn assert_same(one: &Schedule, other: &Schedule) {
    assert!(one.windows().eq(other.windows()), "windows differ: {one:?} {other:?}");
    let runs = |schedule: &Schedule| schedule.full_runs().collect::<Vec<_>>();
    assert_eq!(runs(one), runs(other), "the runs differ");
}

/// Zones with whole minutes, and instants in microseconds near which their clocks change.
pub(crate) fn any_zone() -> impl Strategy<Value = (&'static str, i64)> {
    let changes = [
        ("UTC", "2026-01-05T00:00:00Z"),
        ("Europe/Rome", "2026-03-29T01:00:00Z"),
        ("Europe/Rome", "2026-10-25T01:00:00Z"),
        ("America/New_York", "2026-11-01T06:00:00Z"),
        ("America/Sao_Paulo", "2018-11-04T03:00:00Z"),
        ("America/St_Johns", "2006-10-29T02:31:00Z"),
        ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
        ("Pacific/Apia", "2011-12-30T10:00:00Z"),
        ("Asia/Kathmandu", "1985-12-31T18:30:00Z"),
        ("Europe/London", "1968-10-26T23:00:00Z"),
    ];
    prop::sample::select(changes.to_vec())
        .prop_map(|(name, change)| (name, instant(change).as_micros()))
}

/// A calendar with everything near an instant; blackouts begin and end with whole minutes.
pub(crate) fn any_rules(name: &'static str, near: i64) -> impl Strategy<Value = Rules> {
    let hours = (0..7i8, 0..48u32, 1..=32u32).prop_map(|(weekday, from, length)| {
        let weekday = Weekday::from_monday_zero_offset(weekday).expect("0 to 6");
        (weekday, from * 30..(from * 30 + length * 30).min(24 * 60))
    });
    let today = at(near).to_jiff().to_zoned(zone(name)).date();
    let date = (-4..=4i32)
        .prop_map(move |days| today.checked_add(jiff::Span::new().days(days)).expect("in range"));
    let minute = near.div_euclid(MINUTE);
    let blackout = (-3000..3000i64, 1..2000i64).prop_map(move |(from, length)| {
        (minute + from) * MINUTE..(minute + from + length) * MINUTE
    });
    let open = prop_oneof![
        1 => Just(Vec::new()),
        3 => prop::collection::vec(hours, 1..12),
    ];
    (open, prop::collection::vec(date, 0..3), prop::collection::vec(blackout, 0..3))
        .prop_map(move |(open, closed, blackouts)| Rules { zone: name, open, closed, blackouts })
}
