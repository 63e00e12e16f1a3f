//! The ends of `i64`, of the calendar and of every number a limit may carry.

mod support;

use jiff::tz::TimeZone;
use proptest::prelude::*;
use support::*;
use tollgate_core::{MAX_PER, MAX_UNITS, Rule, Unit, Window};

const ZONES: [&str; 4] = ["UTC", "Europe/Rome", "Pacific/Kiritimati", "America/St_Johns"];
const UNITS: [Unit; 5] = [Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month];

/// The first and the last instant a decision is made at.
const FIRST_DECIDABLE: i64 = -62_135_596_800_000_000;
const LAST_DECIDABLE: i64 = 253_370_764_800_000_000;

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).expect("in the bundled database")
}

fn extreme_now() -> impl Strategy<Value = i64> {
    let edge = prop_oneof![
        Just(i64::MIN),
        Just(i64::MAX),
        Just(0),
        Just(FIRST_DECIDABLE),
        Just(LAST_DECIDABLE),
        Just(jiff::Timestamp::MIN.as_microsecond()),
        Just(jiff::Timestamp::MAX.as_microsecond()),
    ];
    (edge, -3..=3i64).prop_map(|(edge, near)| edge.saturating_add(near))
}

fn extreme_per() -> impl Strategy<Value = i64> {
    prop_oneof![Just(1), Just(MAX_PER.as_micros()), Just(86_400_000_000), 1..=100i64]
}

fn extreme_rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        extreme_per().prop_map(fixed),
        (0..UNITS.len(), 0..ZONES.len())
            .prop_map(|(unit, name)| Rule::Fixed(Window::Calendar(UNITS[unit], zone(ZONES[name])))),
        extreme_per().prop_map(|per| sliding(per, 1)),
        (extreme_per(), prop::option::of(1..=20u64)).prop_map(|(per, burst)| bucket(per, burst)),
    ]
}

fn extreme_max() -> impl Strategy<Value = u64> {
    prop_oneof![1..=10u64, Just(u64::from(u32::MAX)), Just(MAX_UNITS)]
}

fn extreme_cost() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1..=4u32, 1 => Just(u32::MAX)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_now_is_too_extreme_to_decide_within_max(
        rule in extreme_rule(), max in extreme_max(),
        asked in prop::collection::vec((extreme_now(), extreme_cost()), 1..30),
    ) {
        let mut gate = Gate::of(rule.clone(), max);
        let mut admitted = Vec::new();
        for (now, cost) in asked {
            gate.peek(cost, now);
            let decision = gate.spend(cost, now);
            if decision.allowed() {
                let at = decision.decided_at.as_micros();
                admitted.push(Admitted { at, cost: cost.into(), max });
                let mut refunded = gate.clone();
                refunded.refund(&decision, now);
                refunded.refund(&decision, i64::MIN);
            }
        }
        match &rule {
            Rule::Fixed(window @ Window::Calendar(..)) => {
                for event in &admitted {
                    let bounds = window.bounds(at(event.at));
                    let inside = admitted.iter().filter(|other| {
                        (bounds.starts_at..bounds.ends_at).contains(&at(other.at))
                    });
                    prop_assert!(inside.map(|other| other.cost).sum::<u64>() <= max);
                }
            }
            Rule::Fixed(_) => assert_aligned_windows_within_max(&admitted, per_of(&rule)),
            Rule::Sliding { .. } => assert_any_interval_within_max(&admitted, per_of(&rule)),
            Rule::Bucket { burst, .. } => {
                assert_rate_within_burst(&admitted, per_of(&rule), burst.unwrap_or(max));
            }
        }
    }

    #[test]
    fn no_instant_is_too_extreme_for_a_window(
        micros in prop_oneof![extreme_now(), any::<i64>(), FIRST_DECIDABLE..=LAST_DECIDABLE], unit in 0..UNITS.len(),
        name in 0..ZONES.len(), per in extreme_per(),
    ) {
        let windows = [
            Window::Calendar(UNITS[unit], zone(ZONES[name])),
            Window::Span(support::micros(per)),
        ];
        for window in windows {
            // Beyond what is decided, it is enough that neither of them panics.
            let bounds = window.bounds(at(micros));
            let starts_at = window.start_before(bounds.ends_at);
            if (FIRST_DECIDABLE..=LAST_DECIDABLE).contains(&micros) {
                prop_assert!((bounds.starts_at..bounds.ends_at).contains(&at(micros)));
                prop_assert_eq!(starts_at, bounds.starts_at);
            }
        }
    }
}

#[test]
fn instants_beyond_the_calendar_are_decided_at_its_ends() {
    let decided_at = |now| Gate::of(fixed(1), 1).peek(1, now).decided_at.to_string();
    assert_eq!(decided_at(i64::MIN), "0001-01-01T00:00:00.000000Z");
    assert_eq!(decided_at(i64::MAX), "9999-01-01T00:00:00.000000Z");
    assert_eq!(decided_at(0), "1970-01-01T00:00:00.000000Z");
}

#[test]
fn the_largest_max_is_counted_to_the_last_unit() {
    for rule in [fixed(1000), sliding(1000, 1), bucket(1000, None)] {
        let mut gate = Gate::of(rule, u64::from(u32::MAX) + 5);
        assert!(gate.spend(u32::MAX, 0).allowed());
        assert!(gate.spend(5, 0).allowed());
        assert!(!gate.spend(1, 0).allowed());
    }
}

#[test]
fn the_largest_burst_is_counted_to_the_last_unit() {
    let mut gate = Gate::of(bucket(1, Some(MAX_UNITS)), 1);
    let mut left = MAX_UNITS;
    while left > 0 {
        let cost = u32::try_from(left).unwrap_or(u32::MAX);
        assert!(gate.spend(cost, 0).allowed(), "{left} left");
        left -= u64::from(cost);
    }
    assert!(!gate.spend(1, 0).allowed());
}

#[test]
fn a_burst_that_takes_longer_to_refill_than_time_lasts_is_still_a_bound() {
    let mut gate = Gate::of(Rule::Bucket { per: MAX_PER, burst: Some(100_000) }, 1);
    let burst = gate.peek(1, 0).limits[0].standing.max;
    assert!(burst < 100_000, "only what is full again in time can be promised");
    let cost = u32::try_from(burst).expect("checked") / 2 + 1;
    let admitted = (0..10).filter(|_| gate.spend(cost, 0).allowed()).count();
    assert_eq!(admitted, 1, "more than half the burst each, at one instant");
}
