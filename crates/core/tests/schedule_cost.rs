//! Plans that cannot be, changes of `max`, and windows of very many places.

mod schedule_support;

use std::time::{Duration, Instant as Clock};

use jiff::civil::Weekday;
use proptest::prelude::*;
use schedule_support::*;
use tollgate_core::schedule::{
    BadPlan, Calendar, Hours, MAX_PLACES, Plan, PositionSet, Schedule, Spread, WindowState,
};

#[test]
fn a_plan_that_cannot_be_is_refused() {
    let new = |per: i64, max: u64| Plan::new(span(per), max).err();
    assert_eq!(new(10, 10), None);
    assert_eq!(new(10, 11), Some(BadPlan::MaxAbovePer));
    assert_eq!(new(10, 0), Some(BadPlan::NoPlaces));
    assert_eq!(new(DAY, MAX_PLACES), None);
    assert_eq!(new(DAY, MAX_PLACES + 1), Some(BadPlan::TooManyPlaces));
    assert_eq!(new(3660 * DAY, 1), None);
    assert_eq!(new(3660 * DAY + 1, 1), Some(BadPlan::PerTooLong));
    let horizon = plan(10, 1).with_horizon(span(3660 * DAY + 1)).err();
    assert_eq!(horizon, Some(BadPlan::HorizonTooLong));
}

#[test]
fn raising_max_opens_the_rest_and_lowering_closes_it() {
    let mut schedule = Schedule::new(plan(4 * SECOND, 80));
    let places: Vec<_> = (0..80).map(|_| schedule.assign(at(0), 0).expect("a place")).collect();
    schedule.set_plan(plan(4 * SECOND, 200));
    let more = (0..120).map(|_| schedule.assign(at(0), 0).expect("a place"));
    assert!(more.into_iter().all(|place| place.window == 0 && !places.contains(&place)));
    assert_eq!(schedule.assign(at(0), 0).expect("a place").window, 1);
    schedule.set_plan(plan(4 * SECOND, 100));
    assert_eq!(schedule.assign(at(0), 0).expect("a place").window, 1);
    let counts: Vec<_> = schedule.windows().map(|(index, state)| (index, state.count())).collect();
    assert_eq!(counts, [(0, 200), (1, 2)], "what was given stays");
}

#[test]
fn a_random_spread_uses_all_of_the_window_and_the_seed_decides() {
    let plan = plan(DAY, 4000).with_spread(Spread::Random);
    let mut schedule = Schedule::new(plan.clone());
    let mut hours = [0; 24];
    for seed in 0..4000 {
        let place = schedule.assign(at(DAY), seed).expect("a place");
        assert_eq!(place.window, 1);
        hours[((place.at.as_micros() - DAY) / HOUR) as usize] += 1;
        assert_eq!(
            Schedule::new(plan.clone()).assign(at(DAY), seed).expect("a place").at,
            place.at
        );
    }
    // 167 expected in each, standard deviation 13.
    assert!(hours.iter().all(|count| (100..235).contains(count)), "{hours:?}");
}

/// Every position's offset once, so that the oracle is fast enough for large windows.
struct Large {
    per: i64,
    offsets: Vec<i64>,
}

impl Large {
    fn new(per: i64, max: u64) -> Self {
        Self { per, offsets: (0..max).map(|position| offset(per, position)).collect() }
    }

    /// The first free position in a window that begins at 0, for a request from its middle.
    fn expected(&self, taken: &PositionSet, requested: i64, open: [i64; 2]) -> Option<u64> {
        let max = self.offsets.len() as i128;
        let share = max * i128::from(self.per - requested) / i128::from(self.per);
        let rest = taken.iter().filter(|at| offset(self.per, *at) >= requested).count();
        if taken.len() as i128 >= max || (requested > 0 && rest as i128 >= share) {
            return None;
        }
        let usable = requested.max(open[0])..open[1];
        let mut places = (0..).zip(&self.offsets);
        places
            .find(|(at, offset)| usable.contains(offset) && !taken.contains(*at))
            .map(|(at, _)| at)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn in_a_large_window_the_first_free_usable_place_is_found(
        max in prop_oneof![1..600u64, 1..20_000u64],
        exactly: bool, taken_to in 0..25_000u64, taken_step in prop_oneof![1..5u64, 1..2000u64], free in prop::collection::vec(any::<u64>(), 0..6),
        requests in prop::collection::vec(prop_oneof![Just(0), 0..DAY, DAY - SECOND..DAY], 1..12),
        narrow: bool, open in 0..DAY,
    ) {
        let large = Large::new(DAY, max);
        let (taken_to, taken_step) = if exactly { (max, 1) } else { (taken_to, taken_step) };
        let mut taken: PositionSet = (0..taken_to).step_by(taken_step as usize).collect();
        for position in free {
            taken.remove(position % taken_to.max(1));
        }
        let open = if narrow { [open, (open + 40 * SECOND).min(DAY)] } else { [0, DAY] };
        let calendar = Calendar::new(zone("UTC"))
            .blackout(at(0)..at(open[0]))
            .blackout(at(open[1])..at(DAY));
        let mut schedule = Schedule::new(plan(DAY, max).with_calendar(calendar));
        schedule.put_window(0, WindowState { taken: taken.clone(), guests: 0 });
        for requested in requests {
            let expected = large.expected(&taken, requested, open);
            let place = schedule.assign(at(requested), 0).expect("within a year");
            let found = (place.window == 0).then_some(place.position);
            prop_assert_eq!(found, expected, "asked for {}", requested);
            if let Some(position) = found {
                prop_assert_eq!(place.at.as_micros(), large.offsets[position as usize]);
                taken.insert(position);
            }
        }
    }

    #[test]
    fn no_instant_is_too_extreme(
        edge in prop::sample::select(vec![i64::MIN, i64::MAX, 0, -62_135_596_800_000_000,
            253_370_764_800_000_000, jiff::Timestamp::MIN.as_microsecond(),
            jiff::Timestamp::MAX.as_microsecond()]),
        near in -3..=3i64, random: bool, with_calendar: bool,
        per in prop::sample::select(vec![1, 3, 4 * SECOND, DAY, 3660 * DAY]),
        max in prop_oneof![1..=3u64, Just(MAX_PLACES)], horizon in 1..=3660 * DAY,
    ) {
        let mut plan = plan(per, max.min(per as u64)).with_horizon(span(horizon)).unwrap();
        if random {
            plan = plan.with_spread(Spread::Random);
        }
        if with_calendar {
            let hours = Hours::parse("09:00-17:00").unwrap();
            let calendar = Calendar::new(zone("Europe/Rome")).open(Weekday::Monday, hours);
            plan = plan.with_calendar(calendar);
        }
        let mut schedule = Schedule::new(plan.clone());
        let requested = at(edge.saturating_add(near));
        add_guest(&mut schedule, requested);
        for index in [i64::MIN, i64::MAX, 0] {
            let state = WindowState { taken: PositionSet::default(), guests: u64::MAX };
            schedule.put_window(index, state);
        }
        for seed in 0..4 {
            if let Ok(place) = schedule.assign(requested, seed) {
                prop_assert!(place.at >= requested);
                prop_assert!(place.at <= at(253_370_764_800_000_000));
                prop_assert_eq!(plan.index_of(place.at), place.window);
            }
        }
        assert_same(&schedule, &reloaded(&schedule));
        prop_assert!(schedule.give_back_guest(requested));
        schedule.remove_before(requested.as_micros().div_euclid(per));
        schedule.remove_before(i64::MAX);
        prop_assert_eq!(schedule.full_runs().count(), 0);
    }
}

/// Prints; for a person. `cargo test -p tollgate-core --test schedule_cost -- --ignored --nocapture`,
/// with `--release` for figures that mean anything.
#[test]
#[ignore = "measures, and asserts nothing"]
fn measure_assignments() {
    let mut burst = Schedule::new(plan(4 * SECOND, 100));
    let mut parts = Vec::new();
    for _ in 0..5 {
        parts.push(measure(100_000, || {
            burst.assign(at(1), 0).expect("a place");
        }));
    }
    println!("100 per PT4S, 500,000 at one instant, each 100,000: {parts:?} per assign");

    let mut day = Schedule::new(plan(DAY, 1_000_000));
    let mut number = 0;
    let mut parts = Vec::new();
    for _ in 0..5 {
        parts.push(measure(10_000, || {
            number += 1;
            day.assign(at(DAY / 60_000 * number), 0).expect("a place");
        }));
    }
    println!("1,000,000 per day, mid-window, sparse, each 10,000: {parts:?} per assign");

    let mut day = Schedule::new(plan(DAY, 1_000_000));
    let half: PositionSet = (0..500_000).collect();
    day.put_window(0, WindowState { taken: half, guests: 0 });
    let mut number = 0i64;
    let each = measure(10_000, || {
        number += 1;
        day.assign(at(DAY / 2 - DAY / 1000 + number % 100 * SECOND), 0).expect("a place");
    });
    println!("1,000,000 per day, mid-window, half full: {each:?} per assign");
    let state = day.window(0).expect("it holds half a million").clone();
    let mut bytes = Vec::new();
    println!("  encode: {:?}", measure(1, || bytes = state.encode()));
    println!(
        "  {} bytes; decode: {:?}",
        bytes.len(),
        measure(1, || drop(WindowState::decode(&bytes).expect("its own bytes")))
    );
}

fn measure(times: u32, mut each: impl FnMut()) -> Duration {
    let started = Clock::now();
    for _ in 0..times {
        each();
    }
    started.elapsed() / times
}
