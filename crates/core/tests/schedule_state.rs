//! Window states: their bytes, and schedules made from them.

mod schedule_support;

use proptest::prelude::*;
use schedule_support::*;
use tollgate_core::schedule::{MAX_PLACES, PositionSet, Schedule, WindowState};

/// Some runs and some single positions; a few times also the last ones that there can be.
fn any_positions() -> impl Strategy<Value = Vec<u64>> {
    let run = (0..400u64, 1..90u64).prop_map(|(start, length)| (start..start + length).collect());
    let single = prop_oneof![0..700u64, 0..40_000u64].prop_map(|position| vec![position]);
    let last = prop_oneof![60 => Just(0), 1 => 1..3u64];
    (prop::collection::vec(prop_oneof![1 => run, 4 => single], 0..60), last).prop_map(
        |(parts, last): (Vec<Vec<u64>>, u64)| {
            [parts.concat(), (MAX_PLACES - last..MAX_PLACES).collect()].concat()
        },
    )
}

fn any_state() -> impl Strategy<Value = WindowState> {
    let guests = prop_oneof![4 => Just(0), 2 => 0..1000u64, 1 => any::<u64>()];
    (any_positions(), guests).prop_map(|(positions, guests)| WindowState {
        taken: positions.into_iter().collect(),
        guests,
    })
}

fn decoded(state: &WindowState) -> WindowState {
    WindowState::decode(&state.encode()).expect("what it encoded itself")
}

/// What was forgotten is read again, in two parts.
fn read_again(schedule: &mut Schedule, whole: &Schedule) {
    let windows = || whole.windows().map(|(index, state)| (index, state.clone()));
    let first = schedule.first();
    schedule.extend_back(first.saturating_sub(7), windows());
    schedule.extend_back(i64::MIN, windows());
    assert_same(schedule, whole);
    assert_eq!(schedule.first(), i64::MIN);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    #[test]
    fn a_position_set_is_a_set(
        positions in any_positions(), removed in any_positions(),
    ) {
        let mut expected = std::collections::BTreeSet::new();
        let mut set = PositionSet::default();
        for position in &positions {
            prop_assert_eq!(set.insert(*position), expected.insert(*position));
        }
        for position in &removed {
            prop_assert_eq!(set.contains(*position), expected.contains(position));
            prop_assert_eq!(set.remove(*position), expected.remove(position));
        }
        prop_assert_eq!(set.len(), expected.len() as u64);
        prop_assert_eq!(set.is_empty(), expected.is_empty());
        prop_assert!(set.iter().eq(expected.iter().copied()));
        let ordered: PositionSet = expected.iter().copied().collect();
        prop_assert_eq!(&set, &ordered, "however it came to be");
        if let Some(first) = expected.first() {
            set.remove(*first);
            prop_assert_ne!(&set, &ordered);
        }
    }

    #[test]
    fn a_state_comes_back_from_its_bytes(state in any_state()) {
        prop_assert_eq!(&decoded(&state), &state);
    }

    #[test]
    fn a_state_takes_no_more_bytes_than_a_bitmap(state in any_state()) {
        let bitmap = state.taken.iter().last().map_or(0, |last| last / 8 + 1);
        prop_assert!(state.encode().len() as u64 <= 1 + 10 + bitmap);
    }

    #[test]
    fn any_bytes_are_refused_or_encode_back_to_themselves(
        bytes in prop::collection::vec(any::<u8>(), 0..40), form in 0..4u8,
    ) {
        let bytes = [vec![form], bytes].concat();
        if let Ok(state) = WindowState::decode(&bytes) {
            prop_assert_eq!(state.encode(), bytes);
        }
    }

    #[test]
    fn damaged_bytes_are_refused_or_encode_back_to_themselves(
        state in any_state(), place in any::<prop::sample::Index>(), byte: u8, cut: bool,
    ) {
        let mut bytes = state.encode();
        let place = place.index(bytes.len());
        bytes[place] = byte;
        if cut {
            bytes.truncate(place);
        }
        if let Ok(state) = WindowState::decode(&bytes) {
            prop_assert_eq!(state.encode(), bytes);
        }
    }

    #[test]
    fn what_is_forgotten_leaves_the_schedule_of_what_is_kept(
        max in 1..4u64, requests in prop::collection::vec(0..3000i64, 1..60), before in -2..40i64,
    ) {
        let mut schedule = Schedule::new(plan(100, max));
        for requested in requests {
            schedule.assign(at(requested), 0).expect("a year is enough");
        }
        let kept = schedule.windows().filter(|(index, _)| *index >= before);
        let kept: Vec<_> = kept.map(|(index, state)| (index, state.clone())).collect();
        let whole = schedule.clone();
        schedule.remove_before(before);
        assert_same(&schedule, &Schedule::load(plan(100, max), kept));
        read_again(&mut schedule, &whole);
    }

    #[test]
    fn with_a_calendar_too_what_is_forgotten_leaves_the_schedule_of_what_is_kept(
        (near, rules) in any_zone()
            .prop_flat_map(|(name, near)| (Just(near), any_rules(name, near))),
        max in 1..4u64, requests in prop::collection::vec(0..4 * DAY, 1..40),
        windows in 0..100i64,
    ) {
        let plan = plan(HOUR, max).with_calendar(rules.calendar());
        let plan = plan.with_horizon(span(3 * DAY)).expect("a valid horizon");
        let mut schedule = Schedule::new(plan.clone());
        for requested in requests {
            // Where nothing is open for days there is no place.
            let _ = schedule.assign(at(near - 2 * DAY + requested), 0);
        }
        let before = plan.index_of(at(near - 2 * DAY)) + windows;
        let kept = schedule.windows().filter(|(index, _)| *index >= before);
        let kept: Vec<_> = kept.map(|(index, state)| (index, state.clone())).collect();
        let whole = schedule.clone();
        schedule.remove_before(before);
        assert_same(&schedule, &Schedule::load(plan, kept));
        read_again(&mut schedule, &whole);
    }
}

#[test]
fn a_full_window_takes_a_few_bytes_and_a_sparse_one_a_bit_each() {
    let full = WindowState { taken: (0..1_000_000).collect(), guests: 0 };
    assert_eq!(full.encode().len(), 6);
    assert_eq!(decoded(&full), full);
    let every_other = WindowState { taken: (0..8000).step_by(2).collect(), guests: 0 };
    assert_eq!(every_other.encode().len(), 1002);
    assert_eq!(decoded(&every_other), every_other);
    assert_eq!(WindowState::default().encode(), [1, 0]);
}

#[test]
fn a_set_differs_from_one_that_goes_on() {
    let (short, long): (PositionSet, PositionSet) =
        ([5].into_iter().collect(), [5, 5000].into_iter().collect());
    assert_ne!(short, long);
    assert_ne!(long, short);
}

#[test]
fn positions_beyond_the_last_place_are_refused() {
    let mut set = PositionSet::default();
    assert!(set.insert(MAX_PLACES - 1));
    assert!(!set.insert(MAX_PLACES));
    assert!(!set.insert(u64::MAX));
    assert!(!set.contains(u64::MAX) && !set.remove(u64::MAX));
    assert_eq!(set.len(), 1);
    // Runs: no gap, then one longer than there are places.
    assert!(WindowState::decode(&[1, 0, 0, 0x81, 0x80, 0x80, 0x08]).is_err());
    assert!(WindowState::decode(&[1, 0, 0, 0x80, 0x80, 0x80, 0x08]).is_ok());
    let huge = [&[2u8, 0], &vec![255; MAX_PLACES as usize / 8 + 1][..]].concat();
    assert!(WindowState::decode(&huge).is_err());
}

#[test]
fn guests_count_and_hold_no_position() {
    let mut schedule = Schedule::new(plan(100, 3));
    add_guest(&mut schedule, at(110));
    add_guest(&mut schedule, at(190));
    let place = schedule.assign(at(100), 0).expect("one of three is left");
    assert_eq!((place.window, place.position, place.at), (1, 0, at(100)));
    assert_eq!(schedule.assign(at(100), 0).expect("the next window").window, 2);
    assert!(schedule.give_back_guest(at(110)));
    assert_eq!(schedule.assign(at(100), 0).expect("one is left").position, 1);
    assert!(schedule.give_back_guest(at(150)));
    assert!(!schedule.give_back_guest(at(150)), "two came, two left");
    assert!(!schedule.give_back_guest(at(5000)), "none ever was there");
    assert!(schedule.window(50).is_none());
}

#[test]
fn what_nobody_asks_for_any_more_is_forgotten_after_a_while() {
    let mut schedule = Schedule::new(plan(100, 1));
    let mut ask = |window: i64, back: i64| {
        schedule.tidy(at(window * 100), window - back);
        schedule.assign(at((window - back) * 100), 0).expect("a place");
        schedule.windows().next().map(|(index, _)| index)
    };
    assert_eq!(ask(0, 0), Some(0));
    assert_eq!(ask(9_000, 0), Some(0));
    assert_eq!(ask(10_000, 5_000), Some(0), "all that was asked for since the start stays");
    assert_eq!(ask(19_999, 0), Some(0));
    assert_eq!(ask(20_000, 0), Some(5_000), "asked for by somebody in the last 10,000");
    assert_eq!(ask(29_999, 12_000), Some(5_000));
    assert_eq!(ask(30_000, 0), Some(17_999), "asked for far behind, and kept for that");
}
