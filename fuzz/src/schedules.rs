//! Windows of schedules as stores keep them, and files of events.

use tollgate::core::schedule::{Calendar, Hours, Plan, Schedule, Spread, WindowState};
use tollgate::{Instant, Span};
use tollgate_server::fuzzing;

use crate::Numbers;

/// Microseconds: a window is at most about an hour here, so that its places matter.
const MAX_PER_MICROS: i64 = 1 << 32;
/// Decoding a larger one is only slower.
const MAX_PLACES: u64 = 1 << 16;

pub fn schedule_window(input: &[u8]) {
    let mut numbers = Numbers(input);
    let (flags, per, max) = (numbers.u8(), numbers.i64(), numbers.u32());
    let (index, requested, seed) = (numbers.i64(), numbers.i64(), numbers.u64());
    let Ok(state) = WindowState::decode(numbers.0) else { return };
    assert_eq!(state.encode(), numbers.0, "a window that is written back otherwise");
    let per = Span::from_micros(per.unsigned_abs() as i64 % MAX_PER_MICROS);
    let Some(per) = per else { return };
    let Ok(plan) = Plan::new(per, u64::from(max) % MAX_PLACES) else { return };
    let plan = plan.with_spread(if flags & 1 == 0 { Spread::Even } else { Spread::Random });
    let plan = plan.with_horizon(Span::from_secs(30 * 86_400)).expect("a short one");
    let plan = if flags & 2 == 0 { plan } else { plan.with_calendar(office_hours()) };
    // Near each other, or it is only an empty window that is asked.
    let requested = if flags & 4 == 0 {
        plan.starts_at(index).plus_micros(requested % per.as_micros())
    } else {
        Instant::from_micros(requested)
    };
    let was = state.count();
    let mut schedule = Schedule::load(plan, [(index, state)]);
    for number in 0..3u64 {
        let Ok(place) = schedule.assign(requested, seed.wrapping_add(number)) else { break };
        let window = schedule.window(place.window).expect("something is given in it").count();
        let max = schedule.plan().max();
        assert!(place.at >= requested || requested < Instant::from_secs(-62_135_596_800));
        assert!(
            window <= max.max(if place.window == index { was } else { 0 }),
            "{window} of {max}"
        );
        if number == 1 {
            assert!(schedule.give_back(&place), "it was given");
        }
    }
    let _ = schedule.full_runs().count();
}

fn office_hours() -> Calendar {
    let hours = Hours::parse("09:00-17:00").expect("hours");
    let zone = jiff::tz::TimeZone::get("America/New_York").expect("a zone");
    Calendar::new(zone).open(jiff::civil::Weekday::Monday, hours)
}

pub fn slot_import(input: &[u8]) {
    let Ok(events) = fuzzing::imported(input) else { return };
    let lines = input.split(|byte| *byte == b'\n').count() as u64;
    let mut before = 0;
    for (number, event) in events {
        assert!(number > before && number <= lines, "line {number} of {lines} after {before}");
        before = number;
        match event {
            Ok(event) => assert!(event["eventId"].is_string(), "{event}"),
            Err(why) => assert!(!why.is_empty(), "a fault is named"),
        }
    }
}
