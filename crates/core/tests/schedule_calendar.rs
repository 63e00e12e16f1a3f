//! Calendars: the hours that exist twice or not at all, and open ranges against civil time.

mod schedule_support;

use jiff::civil::{Weekday, date};
use proptest::prelude::*;
use schedule_support::*;
use tollgate_core::schedule::{Calendar, Hours};
use tollgate_core::{Instant, Span};

const WEEK: [Weekday; 7] = [
    Weekday::Monday,
    Weekday::Tuesday,
    Weekday::Wednesday,
    Weekday::Thursday,
    Weekday::Friday,
    Weekday::Saturday,
    Weekday::Sunday,
];

fn hours(text: &str) -> Hours {
    Hours::parse(text).expect("valid hours")
}

fn every_day(name: &str, text: &str) -> Calendar {
    WEEK.iter().fold(Calendar::new(zone(name)), |calendar, day| calendar.open(*day, hours(text)))
}

#[track_caller]
fn assert_open(calendar: &Calendar, [from, until]: [&str; 2], expected: &[[&str; 2]]) {
    let shown: Vec<[String; 2]> = calendar
        .open_ranges(instant(from)..instant(until))
        .iter()
        .map(|open| [open.start.to_string(), open.end.to_string()])
        .collect();
    let expected: Vec<[String; 2]> = expected
        .iter()
        .map(|[start, end]| [instant(start).to_string(), instant(end).to_string()])
        .collect();
    assert_eq!(shown, expected);
}

#[test]
fn open_hours_follow_local_time_through_the_year() {
    let office =
        Calendar::new(zone("America/New_York")).open(Weekday::Monday, hours("09:00-17:00"));
    let winter = ["2026-01-04T00:00:00Z", "2026-01-07T00:00:00Z"];
    assert_open(&office, winter, &[["2026-01-05T14:00:00Z", "2026-01-05T22:00:00Z"]]);
    let summer = ["2026-07-05T00:00:00Z", "2026-07-08T00:00:00Z"];
    assert_open(&office, summer, &[["2026-07-06T13:00:00Z", "2026-07-06T21:00:00Z"]]);
}

#[test]
fn an_hour_that_does_not_exist_is_never_open() {
    let calendar = every_day("Europe/Rome", "02:00-03:00");
    let days = ["2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z"];
    assert_open(&calendar, days, &[["2026-03-30T00:00:00Z", "2026-03-30T01:00:00Z"]]);
    let around = every_day("Europe/Rome", "01:30-03:30");
    let day = ["2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z"];
    assert_open(&around, day, &[["2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"]]);
}

#[test]
fn an_hour_that_exists_twice_is_open_both_times() {
    let day = ["2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"];
    let whole = every_day("Europe/Rome", "02:00-03:00");
    assert_open(&whole, day, &[["2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"]]);
    // 01:30 to 02:30, then half an hour closed, then 02:00 comes again.
    let half = every_day("Europe/Rome", "01:30-02:30");
    let twice = [
        ["2026-10-24T23:30:00Z", "2026-10-25T00:30:00Z"],
        ["2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z"],
    ];
    assert_open(&half, day, &twice);
}

#[test]
fn the_last_microsecond_before_a_change_of_offset_in_1969_has_the_offset_before_it() {
    let calendar = every_day("Europe/Rome", "00:30-01:00");
    let from_it_on = ["1969-09-27T22:59:59.999999Z", "1969-09-28T12:00:00Z"];
    let open = [
        ["1969-09-27T22:59:59.999999Z", "1969-09-27T23:00:00Z"],
        ["1969-09-27T23:30:00Z", "1969-09-28T00:00:00Z"],
    ];
    assert_open(&calendar, from_it_on, &open);
}

#[test]
fn days_of_23_and_25_hours_are_open_all_through() {
    let sundays = Calendar::new(zone("Europe/Rome")).open(Weekday::Sunday, hours("00:00-24:00"));
    let march = ["2026-03-28T00:00:00Z", "2026-03-31T00:00:00Z"];
    assert_open(&sundays, march, &[["2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"]]);
    let october = ["2026-10-24T00:00:00Z", "2026-10-27T00:00:00Z"];
    assert_open(&sundays, october, &[["2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"]]);
}

#[test]
fn a_closed_date_is_a_local_day_and_neighbours_are_not_touched() {
    let calendar = Calendar::new(zone("Pacific/Kiritimati")).closed(date(2026, 12, 25));
    let days = ["2026-12-24T00:00:00Z", "2026-12-26T00:00:00Z"];
    let around = [
        ["2026-12-24T00:00:00Z", "2026-12-24T10:00:00Z"],
        ["2026-12-25T10:00:00Z", "2026-12-26T00:00:00Z"],
    ];
    assert_open(&calendar, days, &around);
}

#[test]
fn a_date_that_the_zone_skipped_closes_nothing() {
    let calendar = Calendar::new(zone("Pacific/Apia")).closed(date(2011, 12, 30));
    let days = ["2011-12-29T00:00:00Z", "2011-12-31T12:00:00Z"];
    assert_open(&calendar, days, &[days]);
}

#[test]
fn hours_that_touch_or_overlap_are_one_range_also_across_midnight() {
    let calendar = Calendar::new(zone("UTC"))
        .open(Weekday::Monday, hours("20:00-24:00"))
        .open(Weekday::Monday, hours("12:00-13:00"))
        .open(Weekday::Monday, hours("12:30-14:00"))
        .open(Weekday::Tuesday, hours("00:00-02:00"));
    let days = ["2026-01-05T00:00:00Z", "2026-01-07T00:00:00Z"];
    let open = [
        ["2026-01-05T12:00:00Z", "2026-01-05T14:00:00Z"],
        ["2026-01-05T20:00:00Z", "2026-01-06T02:00:00Z"],
    ];
    assert_open(&calendar, days, &open);
}

#[test]
fn next_open_passes_a_blackout_of_years_and_stops_at_its_end() {
    let end = instant("2034-01-04T10:30:00Z");
    let calendar = every_day("UTC", "09:00-17:00").blackout(instant("2026-01-01T00:00:00Z")..end);
    let from = instant("2026-05-05T09:00:00Z");
    assert_eq!(calendar.next_open(from..Instant::MAX), Some(end));
    assert_eq!(calendar.next_open(from..end), None);
}

#[test]
fn hours_are_parsed_strictly() {
    for bad in [
        "",
        "09:00",
        "9:00-17:00",
        "17:00-09:00",
        "09:00-09:00",
        "09:60-10:00",
        "09:00-24:01",
        "24:00-24:00",
        "+9:00-10:00",
        "09:00-17:00-18:00",
        "09:00:00-10:00",
    ] {
        assert_eq!(Hours::parse(bad), None, "{bad}");
    }
    assert_eq!(Hours::parse("00:00-24:00"), Hours::from_secs(0..86_400));
    assert_eq!(Hours::parse("09:30 - 17:00"), Hours::from_secs(34_200..61_200));
    assert_eq!(Hours::from_secs(0..86_401), None);
}

#[test]
fn outside_the_decidable_years_all_is_closed() {
    let calendar = Calendar::new(zone("Europe/Rome"));
    let all = calendar.open_ranges(Instant::MIN..Instant::MAX);
    let decidable = instant("0001-01-01T00:00:00Z")..instant("9999-01-01T00:00:00Z");
    assert_eq!(all[..], [decidable]);
    assert_eq!(calendar.next_open(all[0].end..Instant::MAX), None);
    assert_eq!(calendar.next_open(Instant::MAX..Instant::MIN), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn an_instant_is_open_exactly_when_its_civil_time_is(
        (near, rules) in any_zone()
            .prop_flat_map(|(name, near)| (Just(near), any_rules(name, near))),
        from in -3 * DAY..3 * DAY, length in 1..4 * DAY,
        probes in prop::collection::vec(-3 * DAY..7 * DAY, 20),
    ) {
        let calendar = rules.calendar();
        let range = at(near + from)..at(near + from + length);
        let open = calendar.open_ranges(range.clone());
        prop_assert!(open.iter().all(|open| open.start < open.end));
        prop_assert!(open.windows(2).all(|pair| pair[0].end < pair[1].start), "{open:?}");
        for edges in &open {
            let (start, end) = (edges.start.as_micros(), edges.end.as_micros());
            prop_assert!(rules.is_open(start) && rules.is_open(end - 1));
            prop_assert!(edges.start == range.start || !rules.is_open(start - 1), "{edges:?}");
            prop_assert!(edges.end == range.end || !rules.is_open(end), "{edges:?}");
        }
        // Rules change at whole minutes only, so these are all instants.
        let minutes = (range.start.as_micros().div_euclid(MINUTE) + 1..).map(|m| m * MINUTE);
        let minutes = minutes.step_by(7).take_while(|m| *m < range.end.as_micros());
        let probes = probes.iter().map(|probe| near + probe);
        for probe in minutes.chain(probes).filter(|probe| range.contains(&at(*probe))) {
            let found = open.iter().any(|open| open.contains(&at(probe)));
            prop_assert_eq!(found, rules.is_open(probe), "{}", at(probe));
            let next = calendar.next_open(at(probe)..range.end);
            let later = open.iter().find(|open| open.end > at(probe));
            prop_assert_eq!(next, later.map(|open| open.start.max(at(probe))));
        }
    }

    #[test]
    fn no_range_is_too_extreme(
        (near, rules) in any_zone()
            .prop_flat_map(|(name, near)| (Just(near), any_rules(name, near))),
        edge in prop::sample::select(vec![i64::MIN, i64::MAX, 0, -62_135_596_800_000_000,
            253_370_764_800_000_000, jiff::Timestamp::MIN.as_microsecond(),
            jiff::Timestamp::MAX.as_microsecond()]),
        length in 1..3 * DAY,
    ) {
        let calendar = rules.calendar().blackout(at(near)..Instant::MAX).blackout(
            Instant::MIN..at(near - 1000 * DAY));
        let start = at(edge.saturating_sub(length / 2));
        for open in calendar.open_ranges(start..start.plus(Span::from_micros(length).unwrap())) {
            prop_assert!(rules.is_open(open.start.as_micros()));
        }
    }
}
