//! What a place costs to find, in windows looked into: no more than two, however many are full.

use jiff::civil::Weekday;
use jiff::tz::TimeZone;

use super::*;
use crate::time::Span;

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR;

fn at(micros: i64) -> Instant {
    Instant::from_micros(micros)
}

fn instant(text: &str) -> Instant {
    Instant::from_jiff(text.parse().expect("an RFC 3339 instant"))
}

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).expect("in the bundled database")
}

fn plan(per: i64, max: u64) -> Plan {
    Plan::new(Span::from_micros(per).expect("not zero"), max).expect("a valid plan")
}

/// How many windows one assignment looks into.
fn examined(schedule: &mut Schedule, requested: i64) -> u64 {
    let before = schedule.windows_examined;
    schedule.assign(at(requested), 1).expect("within a year");
    schedule.windows_examined - before
}

#[test]
fn the_last_of_a_burst_looks_into_as_many_windows_as_the_first() {
    let mut schedule = Schedule::new(plan(4 * SECOND, 100));
    let burst = 4_000_000 * SECOND;
    for _ in 0..200_000 {
        assert_eq!(examined(&mut schedule, burst), 1);
    }
    assert_eq!(schedule.full_runs().count(), 1);
    // Later events that ask for earlier: before the run, at its start, in it and mid-window.
    assert_eq!(examined(&mut schedule, burst - SECOND), 1);
    assert_eq!(examined(&mut schedule, burst), 1);
    assert_eq!(examined(&mut schedule, burst + 7777 * SECOND + 1), 1);
    let own = schedule.plan().index_of(at(burst - 1)) * 4 * SECOND;
    while schedule.window(own / (4 * SECOND)).is_none_or(|state| state.count() < 100) {
        assert_eq!(examined(&mut schedule, own), 1);
    }
    let mid_window = own - SECOND;
    for _ in 0..25 {
        assert_eq!(examined(&mut schedule, mid_window), 1);
    }
    // Its quarter is used up: on to the run and over it.
    assert_eq!(examined(&mut schedule, mid_window), 2);
}

#[test]
fn closed_nights_do_not_break_a_run() {
    let week = [Weekday::Monday, Weekday::Tuesday, Weekday::Wednesday, Weekday::Friday];
    let calendar = week.into_iter().fold(Calendar::new(zone("Europe/Rome")), |calendar, day| {
        calendar.open(day, Hours::parse("09:00-17:00").expect("hours"))
    });
    let mut schedule = Schedule::new(plan(HOUR, 5).with_calendar(calendar));
    // Through the change of clocks, 8 hours a day, 4 days a week, 4 weeks.
    let monday = instant("2026-03-16T00:00:00Z").as_micros();
    for _ in 0..5 * 8 * 4 * 4 {
        assert!(examined(&mut schedule, monday) <= 2);
    }
    assert_eq!(schedule.full_runs().count(), 1);
    let place = schedule.assign(at(monday + 3 * DAY), 0).expect("within a year");
    assert_eq!(place.at, instant("2026-04-13T07:00:00Z"));
    assert!(examined(&mut schedule, monday + 9 * DAY + 1) <= 2);
    // A place given back in the middle is found, and no other.
    let given = instant("2026-03-27T13:00:00Z");
    let window = schedule.plan().index_of(given);
    assert!(schedule.give_back(&Place { window, position: 0, at: given }));
    assert_eq!(schedule.full_runs().count(), 2);
    assert_eq!(schedule.assign(at(monday), 0).expect("the one").at, given);
    assert_eq!(schedule.full_runs().count(), 1);
}

#[test]
fn windows_that_are_open_where_no_place_stands_do_not_break_a_run() {
    // The only place of an hour is its start: that of the hour from 9 is closed, from 10 open.
    let calendar = (0..7).fold(Calendar::new(zone("UTC")), |calendar, day| {
        let day = Weekday::from_monday_zero_offset(day).expect("0 to 6");
        calendar.open(day, Hours::parse("09:30-10:30").expect("hours"))
    });
    let mut schedule = Schedule::new(plan(HOUR, 1).with_calendar(calendar));
    for day in 0..100 {
        assert!(examined(&mut schedule, 0) <= 2);
        assert_eq!(schedule.window(day * 24 + 10).map(WindowState::count), Some(1));
    }
    let runs: Vec<_> = schedule.full_runs().map(|run| (run.start, run.end)).collect();
    assert_eq!(runs, [(10, 100 * 24 + 10)]);
}

#[test]
fn windows_that_never_have_a_place_are_looked_through_once() {
    let open_at = |hours| {
        (0..7).fold(Calendar::new(zone("UTC")), |calendar, day| {
            let day = Weekday::from_monday_zero_offset(day).expect("0 to 6");
            calendar.open(day, Hours::parse(hours).expect("hours"))
        })
    };
    // The only place of an hour is its start, which is closed.
    let barren = plan(HOUR, 1).with_calendar(open_at("09:30-09:45"));
    let mut schedule = Schedule::new(barren);
    let runs = |schedule: &Schedule| -> Vec<_> {
        schedule.barren.iter().map(|run| (run.start, run.end)).collect()
    };
    assert_eq!(schedule.assign(at(0), 0), Err(HorizonFull));
    assert_eq!(runs(&schedule), [(1, 365 * 24 + 1)]);
    assert_eq!(schedule.assign(at(4 * DAY), 0), Err(HorizonFull));
    assert_eq!(runs(&schedule), [(1, 369 * 24 + 1)]);
    schedule.remove_before(48);
    assert_eq!(schedule.assign(at(2 * DAY), 0), Err(HorizonFull));
    // Under another calendar they are others.
    schedule.set_plan(plan(HOUR, 1).with_calendar(open_at("09:30-10:30")));
    assert_eq!(schedule.assign(at(2 * DAY), 0).expect("it is open").at, at(2 * DAY + 10 * HOUR));
}
