//! Random histories, answer by answer against the oracle: the right place each time, the bounds at
//! the end, and a schedule that equals its own bytes.

mod schedule_support;

use proptest::prelude::*;
use schedule_support::*;
use tollgate_core::schedule::{Place, Schedule, Spread};

#[derive(Clone, Debug)]
enum Step {
    /// Asks for this part of the range of the test.
    Assign {
        thousandths: i64,
        seed: u64,
    },
    /// Asks for the start of a window, near this part of the range.
    AssignAligned {
        thousandths: i64,
    },
    /// Cancels one of the slots that exist.
    Cancel {
        which: prop::sample::Index,
    },
    /// The same request again after its place was given back.
    AssignTwice {
        thousandths: i64,
        seed: u64,
    },
    SetMax {
        max: u64,
    },
    /// Another instance's change: the window comes in as bytes.
    Refetch {
        which: prop::sample::Index,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let thousandths = 0..1000i64;
    prop_oneof![
        12 => (thousandths.clone(), any::<u64>())
            .prop_map(|(thousandths, seed)| Step::Assign { thousandths, seed }),
        6 => thousandths.clone().prop_map(|thousandths| Step::AssignAligned { thousandths }),
        4 => any::<prop::sample::Index>().prop_map(|which| Step::Cancel { which }),
        2 => (thousandths, any::<u64>())
            .prop_map(|(thousandths, seed)| Step::AssignTwice { thousandths, seed }),
        1 => (1..=9u64).prop_map(|max| Step::SetMax { max }),
        1 => any::<prop::sample::Index>().prop_map(|which| Step::Refetch { which }),
    ]
}

struct Run {
    model: Model,
    schedule: Schedule,
    /// What may be asked for begins here and is this long.
    from: i64,
    length: i64,
}

impl Run {
    fn new(model: Model, from: i64, length: i64) -> Self {
        Self { schedule: Schedule::new(model.plan()), model, from, length }
    }

    fn assign(&mut self, requested: i64, seed: u64) -> Option<Place> {
        let before: Vec<_> = self.schedule.windows().map(|(i, s)| (i, s.clone())).collect();
        let mut twin = self.schedule.clone();
        let place = self.schedule.assign(at(requested), seed).ok();
        assert_eq!(place, twin.assign(at(requested), seed).ok(), "same inputs, same answer");
        let changed = place.map(|place| place.window);
        let kept = |index: &i64| Some(*index) != changed;
        let after = self.schedule.windows().filter(|(index, _)| kept(index));
        assert!(after.eq(before.iter().filter(|(i, _)| kept(i)).map(|(i, s)| (*i, s))));
        self.model.check(requested, place);
        place
    }

    fn cancel(&mut self, which: usize) {
        let slot = self.model.slots.swap_remove(which);
        let window = slot.at.div_euclid(self.model.per);
        match slot.position {
            Some(position) => {
                let place = Place { window, position, at: at(slot.at) };
                assert!(self.schedule.give_back(&place));
                assert!(!self.schedule.give_back(&place), "given back twice");
            }
            None => assert!(self.schedule.give_back_guest(at(slot.at))),
        }
    }

    fn step(&mut self, step: &Step) {
        let asked = |thousandths: i64| self.from + self.length * thousandths / 1000;
        match step {
            Step::Assign { thousandths, seed } => {
                self.assign(asked(*thousandths), *seed);
            }
            Step::AssignAligned { thousandths } => {
                let per = self.model.per;
                self.assign(asked(*thousandths).div_euclid(per) * per, 7);
            }
            Step::Cancel { which } => {
                if !self.model.slots.is_empty() {
                    self.cancel(which.index(self.model.slots.len()));
                }
            }
            Step::AssignTwice { thousandths, seed } => {
                let requested = asked(*thousandths);
                let before = self.schedule.clone();
                if let Some(place) = self.assign(requested, *seed) {
                    self.cancel(self.model.slots.len() - 1);
                    assert_same(&before, &self.schedule);
                    assert_eq!(self.assign(requested, *seed), Some(place));
                }
            }
            Step::SetMax { max } => {
                self.model.max = (*max).min(self.model.per as u64);
                self.schedule.set_plan(self.model.plan());
            }
            Step::Refetch { which } => {
                let windows: Vec<i64> = self.schedule.windows().map(|(index, _)| index).collect();
                if !windows.is_empty() {
                    let index = windows[which.index(windows.len())];
                    let state = reloaded(&self.schedule).window(index).cloned();
                    self.schedule.put_window(index, Default::default());
                    self.schedule.put_window(index, state.expect("it was there"));
                }
            }
        }
    }

    fn steps(&mut self, steps: &[Step]) {
        for (number, step) in steps.iter().enumerate() {
            self.step(step);
            if number % 8 == 0 {
                self.model.assert_state(&self.schedule);
            }
        }
        self.model.assert_state(&self.schedule);
        self.model.assert_bounds();
    }

    /// The same slots under another `per`.
    fn change_per(&mut self, per: i64, max: u64) {
        self.model.per = per;
        self.model.max = max.min(per as u64);
        self.schedule = Schedule::new(self.model.plan());
        for slot in &mut self.model.slots {
            slot.position = None;
            add_guest(&mut self.schedule, at(slot.at));
        }
    }
}

fn any_spread() -> impl Strategy<Value = Spread> {
    prop_oneof![3 => Just(Spread::Even), 1 => Just(Spread::Random)]
}

fn any_per() -> impl Strategy<Value = i64> {
    prop_oneof![1..=40i64, Just(4 * SECOND), 1..DAY]
}

fn model(per: i64, max: u64, spread: Spread, horizon: i64) -> Model {
    let max = max.min(per as u64);
    Model { per, max, spread, horizon, rules: None, slots: Vec::new() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_place_is_the_first_free_one_and_the_bounds_hold(
        per in any_per(), max in 1..=9u64, spread in any_spread(),
        windows in 1..=6i64, horizon in 1..=12i64, origin in -3..=3i64,
        steps in prop::collection::vec(any_step(), 1..70),
    ) {
        let horizon = (per * horizon / 2).max(1);
        let mut run = Run::new(model(per, max, spread, horizon), origin * per, per * windows);
        run.steps(&steps);
    }

    #[test]
    fn a_change_of_per_counts_what_exists_and_fills_nothing_further_above_max(
        pers in (prop_oneof![1..=40i64, Just(4000)], prop_oneof![1..=40i64, Just(3000), Just(8000)]),
        maxima in (1..=9u64, 1..=9u64),
        before in prop::collection::vec(any_step(), 1..40),
        after in prop::collection::vec(any_step(), 1..40),
    ) {
        let length = 4 * pers.0.max(pers.1);
        let mut run = Run::new(model(pers.0, maxima.0, Spread::Even, 300 * pers.0), 0, length);
        run.steps(&before);
        run.change_per(pers.1, maxima.1);
        run.model.horizon = 300 * pers.1;
        run.schedule.set_plan(run.model.plan());
        run.steps(&after);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn with_a_calendar_every_place_is_the_first_free_open_one(
        (near, rules) in any_zone()
            .prop_flat_map(|(name, near)| (Just(near), any_rules(name, near))),
        per in prop_oneof![20 * MINUTE..3 * DAY, Just(HOUR), Just(DAY), Just(30 * MINUTE)],
        max in 1..=6u64, spread in any_spread(), hours in 1..100i64,
        steps in prop::collection::vec(any_step(), 1..30),
    ) {
        let mut model = model(per, max, spread, hours * HOUR);
        model.rules = Some(rules);
        let mut run = Run::new(model, near - 2 * DAY, 4 * DAY);
        run.steps(&steps);
    }
}
