//! Calendar windows: named cases from the zones that are hard, and the property that windows
//! partition time.

mod support;

use std::ops::Range;

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use proptest::prelude::*;
use support::{Gate, at};
use tollgate_core::{Bounds, Instant, Rule, Span, Unit, Window};

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;

const YEAR_1900: i64 = -2_208_988_800_000_000;
// A little later, so that what stands near it is not before it.
const EPOCH: i64 = 3 * DAY;
const YEAR_2300: i64 = 10_413_792_000_000_000;

const ZONES: [&str; 22] = [
    "UTC",
    "Europe/Rome",
    "Europe/London",
    "Europe/Dublin",
    "Europe/Lisbon",
    "America/New_York",
    "America/St_Johns",
    "America/Sao_Paulo",
    "America/Toronto",
    "America/Caracas",
    "America/Nuuk",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Australia/Eucla",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Asia/Gaza",
    "Africa/Casablanca",
    "Africa/Monrovia",
    "Pacific/Apia",
    "Pacific/Kwajalein",
];

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).expect("in the bundled database")
}

fn instant(text: &str) -> Instant {
    Instant::from_jiff(text.parse().expect("an RFC 3339 instant"))
}

fn bounds(unit: Unit, name: &str, text: &str) -> Bounds {
    Window::Calendar(unit, zone(name)).bounds(instant(text))
}

/// The window of `text` is [starts_at, ends_at), and its first and last instant agree.
#[track_caller]
fn assert_window(unit: Unit, name: &str, text: &str, [starts_at, ends_at]: [&str; 2]) {
    let window = Window::Calendar(unit, zone(name));
    let expected = Bounds { starts_at: instant(starts_at), ends_at: instant(ends_at) };
    let shown = |bounds: Bounds| format!("{}/{}", bounds.starts_at, bounds.ends_at);
    for inside in [instant(text), expected.starts_at, expected.ends_at.plus_micros(-1)] {
        assert_eq!(shown(window.bounds(inside)), shown(expected), "of {inside} in {name}");
    }
    assert_eq!(window.start_before(expected.ends_at), expected.starts_at);
}

#[track_caller]
fn assert_length(unit: Unit, name: &str, text: &str, hours: i64) {
    let bounds = bounds(unit, name, text);
    assert_eq!(bounds.ends_at.micros_since(bounds.starts_at), hours * HOUR, "{text} in {name}");
}

#[test]
fn the_day_clocks_go_forward_has_23_hours() {
    let rome = ["2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"];
    assert_window(Unit::Day, "Europe/Rome", "2026-03-29T12:00:00Z", rome);
    let new_york = ["2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"];
    assert_window(Unit::Day, "America/New_York", "2026-03-08T12:00:00Z", new_york);
}

#[test]
fn the_day_clocks_go_back_has_25_hours() {
    let rome = ["2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"];
    assert_window(Unit::Day, "Europe/Rome", "2026-10-25T12:00:00Z", rome);
    let new_york = ["2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"];
    assert_window(Unit::Day, "America/New_York", "2026-11-01T12:00:00Z", new_york);
}

#[test]
fn a_daily_allowance_lasts_all_25_hours() {
    let window = Window::Calendar(Unit::Day, zone("Europe/Rome"));
    let mut gate = Gate::of(Rule::Fixed(window), 1);
    let midnight = instant("2026-10-24T22:00:00Z").as_micros();
    assert!(gate.spend(1, midnight).allowed());
    let refused = gate.spend(1, midnight + DAY);
    assert_eq!(refused.retry_at(), Some(instant("2026-10-25T23:00:00Z")));
    assert!(!gate.spend(1, midnight + 25 * HOUR - 1).allowed());
    assert!(gate.spend(1, midnight + 25 * HOUR).allowed());
}

#[test]
fn a_date_that_local_time_visits_twice_is_one_window() {
    // At 00:01 on the 29th the clocks of St. John's went back to 23:01 on the 28th.
    let the_28th = ["2006-10-28T02:30:00Z", "2006-10-29T02:30:00Z"];
    let the_29th = ["2006-10-29T02:30:00Z", "2006-10-30T03:30:00Z"];
    assert_window(Unit::Day, "America/St_Johns", "2006-10-29T02:29:59Z", the_28th);
    assert_window(Unit::Day, "America/St_Johns", "2006-10-29T02:30:30Z", the_29th);
    assert_window(Unit::Day, "America/St_Johns", "2006-10-29T02:31:00Z", the_29th);
    assert_window(Unit::Day, "America/St_Johns", "2006-10-29T03:00:00Z", the_29th);
    assert_window(Unit::Day, "America/St_Johns", "2006-10-29T03:30:00Z", the_29th);
}

#[test]
fn a_day_without_midnight_begins_when_its_first_hour_does() {
    let day = ["2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"];
    assert_window(Unit::Day, "America/Sao_Paulo", "2018-11-04T12:00:00Z", day);
}

#[test]
fn a_day_whose_midnight_falls_into_a_gap_begins_at_the_end_of_the_gap() {
    // At 23:30 on the 30th of March 1919 the clocks of Toronto went forward to 00:30.
    let day = ["1919-03-31T04:30:00Z", "1919-04-01T04:00:00Z"];
    assert_window(Unit::Day, "America/Toronto", "1919-03-31T12:00:00Z", day);
    assert_window(Unit::Day, "America/Toronto", "1919-03-31T04:40:00Z", day);
}

#[test]
fn the_last_microsecond_before_a_change_of_offset_in_1969_is_in_its_minute() {
    let minute = ["1969-09-27T22:59:00Z", "1969-09-27T23:00:00Z"];
    assert_window(Unit::Minute, "Europe/Rome", "1969-09-27T22:59:59.999999Z", minute);
}

#[test]
fn a_date_that_a_zone_skipped_has_no_window() {
    // Samoa went from the 29th of December 2011 straight to the 31st.
    let the_29th = ["2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"];
    let the_31st = ["2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"];
    assert_window(Unit::Day, "Pacific/Apia", "2011-12-30T09:59:59Z", the_29th);
    assert_window(Unit::Day, "Pacific/Apia", "2011-12-30T10:00:00Z", the_31st);
}

#[test]
fn an_hour_with_a_half_hour_shift_in_it_is_cut_in_two() {
    // Back half an hour at 02:00: from 15:00Z it is 01:30 again.
    let (unit, name) = (Unit::Hour, "Australia/Lord_Howe");
    assert_window(
        unit,
        name,
        "2026-04-04T14:59:59Z",
        ["2026-04-04T14:00:00Z", "2026-04-04T15:00:00Z"],
    );
    assert_window(
        unit,
        name,
        "2026-04-04T15:10:00Z",
        ["2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z"],
    );
    assert_window(
        unit,
        name,
        "2026-04-04T15:30:00Z",
        ["2026-04-04T15:30:00Z", "2026-04-04T16:30:00Z"],
    );
    // Forward half an hour at 02:00: from 15:30Z it is 02:30.
    assert_window(
        unit,
        name,
        "2026-10-03T15:29:00Z",
        ["2026-10-03T14:30:00Z", "2026-10-03T15:30:00Z"],
    );
    assert_window(
        unit,
        name,
        "2026-10-03T15:31:00Z",
        ["2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z"],
    );
    assert_window(
        unit,
        name,
        "2026-10-03T16:00:00Z",
        ["2026-10-03T16:00:00Z", "2026-10-03T17:00:00Z"],
    );
}

#[test]
fn hours_follow_local_clocks_that_are_30_or_45_minutes_off() {
    let kolkata = ["2026-06-01T11:30:00Z", "2026-06-01T12:30:00Z"];
    assert_window(Unit::Hour, "Asia/Kolkata", "2026-06-01T12:00:00Z", kolkata);
    let kathmandu = ["2026-06-01T11:15:00Z", "2026-06-01T12:15:00Z"];
    assert_window(Unit::Hour, "Asia/Kathmandu", "2026-06-01T12:00:00Z", kathmandu);
    let eucla = ["2026-06-01T11:15:00Z", "2026-06-01T12:15:00Z"];
    assert_window(Unit::Hour, "Australia/Eucla", "2026-06-01T12:00:00Z", eucla);
    let minute = ["2026-06-01T12:00:00Z", "2026-06-01T12:01:00Z"];
    assert_window(Unit::Minute, "Asia/Kathmandu", "2026-06-01T12:00:59.999999Z", minute);
}

#[test]
fn the_hour_that_comes_twice_is_two_windows() {
    let first = ["2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z"];
    let second = ["2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"];
    assert_window(Unit::Hour, "Europe/Rome", "2026-10-25T00:30:00Z", first);
    assert_window(Unit::Hour, "Europe/Rome", "2026-10-25T01:30:00Z", second);
}

#[test]
fn weeks_begin_on_monday() {
    let week = ["2026-11-09T00:00:00Z", "2026-11-16T00:00:00Z"];
    assert_window(Unit::Week, "UTC", "2026-11-15T23:59:59Z", week);
    let across_the_year = ["2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z"];
    assert_window(Unit::Week, "UTC", "2027-01-01T00:00:00Z", across_the_year);
    assert_length(Unit::Week, "Europe/Rome", "2026-03-26T00:00:00Z", 7 * 24 - 1);
    assert_length(Unit::Week, "Europe/Rome", "2026-10-22T00:00:00Z", 7 * 24 + 1);
}

#[test]
fn months_know_leap_years() {
    let leap = ["2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"];
    assert_window(Unit::Month, "UTC", "2024-02-29T23:59:59Z", leap);
    assert_length(Unit::Month, "UTC", "2024-02-10T00:00:00Z", 29 * 24);
    assert_length(Unit::Month, "UTC", "2023-02-10T00:00:00Z", 28 * 24);
    assert_length(Unit::Month, "UTC", "2000-02-10T00:00:00Z", 29 * 24);
    assert_length(Unit::Month, "UTC", "2100-02-10T00:00:00Z", 28 * 24);
    let december = ["2026-11-30T23:00:00Z", "2026-12-31T23:00:00Z"];
    assert_window(Unit::Month, "Europe/Rome", "2026-12-31T22:59:59Z", december);
}

#[test]
fn the_rules_of_today_hold_in_the_year_2200() {
    assert_length(Unit::Month, "UTC", "2200-02-10T00:00:00Z", 28 * 24);
    assert_length(Unit::Month, "Europe/Rome", "2200-03-10T00:00:00Z", 31 * 24 - 1);
    assert_length(Unit::Month, "Europe/Rome", "2200-10-10T00:00:00Z", 31 * 24 + 1);
    let new_year = ["2200-12-31T23:00:00Z", "2201-01-01T23:00:00Z"];
    assert_window(Unit::Day, "Europe/Rome", "2201-01-01T12:00:00Z", new_year);
}

#[test]
fn units_are_named_as_they_are_written() {
    for unit in [Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month] {
        assert_eq!(Unit::parse(unit.as_str()), Some(unit));
    }
    assert_eq!(Unit::parse("year"), None);
    assert_eq!(Unit::parse("Day"), None);
}

/// Every other instant stands near a change of the zone's offset, where windows break if they
/// break anywhere.
fn any_place(micros: Range<i64>) -> impl Strategy<Value = (TimeZone, Instant)> {
    let near = prop_oneof![Just(0i64), -2..=2i64, -2 * HOUR..=2 * HOUR, -DAY..=DAY];
    (0..ZONES.len(), micros, any::<bool>(), near).prop_map(|(name, micros, jump, near)| {
        let zone = zone(ZONES[name]);
        let change = if jump { zone.following(at(micros).to_jiff()).next() } else { None };
        let place = change.map_or(at(micros), |change| Instant::from_jiff(change.timestamp()));
        (zone.clone(), place.plus_micros(near))
    })
}

fn assert_partition(zone: &TimeZone, place: Instant) {
    for unit in [Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month] {
        let window = Window::Calendar(unit, zone.clone());
        let bounds = window.bounds(place);
        assert!(bounds.starts_at <= place && place < bounds.ends_at);
        assert_eq!(window.bounds(bounds.starts_at), bounds);
        assert_eq!(window.bounds(bounds.ends_at.plus_micros(-1)), bounds);
        assert_eq!(window.bounds(bounds.ends_at).starts_at, bounds.ends_at);
        assert_eq!(window.start_before(bounds.ends_at), bounds.starts_at);
        match unit {
            Unit::Minute => assert_one_clock_unit(HOUR / 60, zone, bounds),
            Unit::Hour => assert_one_clock_unit(HOUR, zone, bounds),
            _ => assert_begins_with_its_date(unit, zone, place, bounds),
        }
    }
}

/// Before the epoch jiff 0.2.39 looks a fraction of a second up in the second after it. Offsets
/// change on whole seconds, so nothing is lost.
fn whole_second(instant: Instant) -> jiff::Timestamp {
    instant.floor_to(Span::from_secs(1)).to_jiff()
}

fn local_date(zone: &TimeZone, instant: Instant) -> Date {
    zone.to_datetime(whole_second(instant)).date()
}

/// Where the window begins, told by local dates alone: on a first date of its unit, and never
/// after an instant that already had that date.
fn assert_begins_with_its_date(unit: Unit, zone: &TimeZone, place: Instant, bounds: Bounds) {
    let first = local_date(zone, bounds.starts_at);
    let next = local_date(zone, bounds.ends_at);
    assert!(local_date(zone, bounds.starts_at.plus_micros(-1)) < first, "{place} in {zone:?}");
    assert!(local_date(zone, place) < next);
    let begins = |date: Date| match unit {
        Unit::Week => date.weekday() == Weekday::Monday,
        Unit::Month => date.day() == 1,
        _ => true,
    };
    assert!(begins(first) && begins(next), "{first} to {next}");
}

/// A minute or an hour of local time, or what a change of offset left of it.
fn assert_one_clock_unit(length: i64, zone: &TimeZone, bounds: Bounds) {
    let local = |instant: Instant| {
        let offset = i64::from(zone.to_offset(whole_second(instant)).seconds()) * 1_000_000;
        (offset, (instant.as_micros() + offset).div_euclid(length))
    };
    let (starts_at, ends_at) = (bounds.starts_at, bounds.ends_at);
    assert_eq!(local(starts_at), local(ends_at.plus_micros(-1)));
    assert_ne!(local(starts_at), local(starts_at.plus_micros(-1)));
    assert_ne!(local(ends_at), local(ends_at.plus_micros(-1)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn windows_partition_time((zone, place) in any_place(EPOCH..YEAR_2300)) {
        assert_partition(&zone, place);
    }

    #[test]
    fn windows_partition_time_before_the_epoch((zone, place) in any_place(YEAR_1900..EPOCH)) {
        assert_partition(&zone, place);
    }

    #[test]
    fn spans_partition_time(per in support::any_per(), micros in -(1i64 << 60)..1 << 60) {
        let window = Window::Span(support::micros(per));
        let bounds = window.bounds(at(micros));
        let starts_at = micros.div_euclid(per) * per;
        let expected = Bounds { starts_at: at(starts_at), ends_at: at(starts_at + per) };
        prop_assert_eq!(bounds, expected);
        prop_assert_eq!(window.start_before(bounds.ends_at), bounds.starts_at);
    }
}
