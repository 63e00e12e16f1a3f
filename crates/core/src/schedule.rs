//! Schedules: gives every event its own place, in the first window that has one for it.
//!
//! A place is a window and a position in it. Windows are `per` long, aligned to the epoch, with
//! `max` places each; a window has no more, whatever is cancelled, changed or asked from its
//! middle. With an even spread no interval of one window's length has more, either.
//!
//! Finding a place costs the same however many windows are full: maximal runs of them are kept,
//! and one look-up passes a run. The runs follow from the windows and the plan, so a store keeps
//! windows only.
//!
//! Deliberately not here: event ids and the slots themselves (so nothing here is idempotent), the
//! versions of a plan, retention, a clock, and any form of waiting. A change of `per` is a new
//! schedule, whose windows the caller counts again from the slots that exist.

mod calendar;
mod places;
mod plan;
mod positions;
mod runs;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

pub use calendar::{Calendar, Hours, Ranges};
pub use plan::{BadPlan, DEFAULT_HORIZON, Plan, Spread};
pub use positions::{MAX_PLACES, PositionSet};
pub use state::WindowState;

use crate::time::Instant;
use runs::Runs;

/// What an event gets: its own instant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The window: `at` divided by `per`, rounded down.
    pub window: i64,
    pub position: u64,
    pub at: Instant,
}

/// There is no place up to the horizon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HorizonFull;

impl fmt::Display for HorizonFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no free place up to the horizon")
    }
}

impl std::error::Error for HorizonFull {}

/// After so many windows of time, what nobody asked for meanwhile is forgotten.
const TIDY_AFTER: i64 = 10_000;

/// Stretches of fewer windows are as well looked through again.
const LONG_STRETCH: i64 = 64;

/// A plan and the places given under it.
#[derive(Clone, Debug)]
pub struct Schedule {
    plan: Plan,
    /// Windows before this one are not known.
    first: i64,
    /// Only those in which something is given.
    windows: BTreeMap<i64, WindowState>,
    /// When it was last tidied, and the first window anybody asked for since.
    tidied_at: i64,
    asked_from: i64,
    /// Each full window that could have places, and all behind it that never could.
    runs: Runs,
    /// Long stretches of windows that never could have a place, as far as they were looked through.
    barren: Runs,
    /// How many windows all calls of [`Self::assign`] have looked into.
    #[cfg(test)]
    windows_examined: u64,
}

impl Schedule {
    /// One in which nothing was given yet.
    pub fn new(plan: Plan) -> Self {
        Self { first: i64::MIN, ..Self::unknown(plan) }
    }

    /// One of which no window is known yet: see [`Self::extend_back`].
    pub fn unknown(plan: Plan) -> Self {
        Self {
            plan,
            first: i64::MAX,
            windows: BTreeMap::new(),
            tidied_at: i64::MAX,
            asked_from: i64::MAX,
            runs: Runs::default(),
            barren: Runs::default(),
            #[cfg(test)]
            windows_examined: 0,
        }
    }

    /// A schedule as a store kept it.
    pub fn load(plan: Plan, windows: impl IntoIterator<Item = (i64, WindowState)>) -> Self {
        let mut schedule = Self::unknown(plan);
        schedule.extend_back(i64::MIN, windows);
        schedule
    }

    /// Windows before this one are not known, and nothing may be assigned to them.
    pub fn first(&self) -> i64 {
        self.first
    }

    /// Knows the windows from `first` on: these are the ones before [`Self::first`] in which
    /// something is given.
    pub fn extend_back(
        &mut self,
        first: i64,
        windows: impl IntoIterator<Item = (i64, WindowState)>,
    ) {
        let knows_none = self.first == i64::MAX;
        for (index, state) in windows {
            let is_new = knows_none || index < self.first;
            if is_new && index >= first && state.count() > 0 {
                self.windows.insert(index, state);
                self.refresh(index);
            }
        }
        self.first = self.first.min(first);
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Gives a place at or after `requested`: in the first window that has one, the first one
    /// there in the order of the spread. Changes that window only. `seed` is a hash of the event's
    /// id: where a random spread puts it.
    pub fn assign(&mut self, requested: Instant, seed: u64) -> Result<Place, HorizonFull> {
        let requested = requested.decidable();
        let (reach, last) = (self.plan.reach(requested), self.plan.last_for(requested));
        let empty = WindowState::default();
        let mut index = self.plan.index_of(requested);
        debug_assert!(index >= self.first, "what is not known cannot be assigned to");
        loop {
            index = self.runs.end_after(index).unwrap_or(index);
            if index > last {
                return Err(HorizonFull);
            }
            #[cfg(test)]
            {
                self.windows_examined += 1;
            }
            let state = self.windows.get(&index).unwrap_or(&empty);
            if let Some(place) = places::find(&self.plan, state, index, &reach, seed) {
                self.windows.entry(index).or_default().taken.insert(place.position);
                self.refresh(index);
                return Ok(place);
            }
            index = self.next_with_places(index + 1, last).ok_or(HorizonFull)?;
        }
    }

    /// As the plan says, but looks through a long stretch without any only once.
    fn next_with_places(&mut self, index: i64, last: i64) -> Option<i64> {
        let index = self.barren.end_after(index).unwrap_or(index);
        let next = self.plan.next_with_places(index, last);
        let end = next.unwrap_or(last + 1);
        if end.saturating_sub(index) >= LONG_STRETCH {
            self.barren.insert(index..end);
        }
        next
    }

    /// Frees a place that this schedule's `per` gave; false if it was free.
    pub fn give_back(&mut self, place: &Place) -> bool {
        let state = self.windows.get_mut(&place.window);
        let freed = state.is_some_and(|state| state.taken.remove(place.position));
        self.refresh(place.window);
        freed
    }

    /// Frees what a guest counted; false if its window had none.
    pub fn give_back_guest(&mut self, at: Instant) -> bool {
        let index = self.plan.index_of(at);
        let Some(state) = self.windows.get_mut(&index) else { return false };
        let fewer = state.guests.checked_sub(1);
        state.guests = fewer.unwrap_or(0);
        self.refresh(index);
        fewer.is_some()
    }

    /// Replaces a window that another instance changed.
    pub fn put_window(&mut self, index: i64, state: WindowState) {
        if index >= self.first {
            self.windows.insert(index, state);
            self.refresh(index);
        }
    }

    /// Now and then forgets what lies before all that was asked for in the last ten thousand windows
    /// of time. `asked` is the first window that is about to be asked for.
    pub fn tidy(&mut self, now: Instant, asked: i64) {
        let now = self.plan.index_of(now);
        self.asked_from = self.asked_from.min(asked).min(now);
        if self.tidied_at == i64::MAX {
            self.tidied_at = now;
        } else if now.saturating_sub(self.tidied_at) >= TIDY_AFTER {
            self.remove_before(self.asked_from);
            self.tidied_at = now;
            self.asked_from = asked.min(now);
        }
    }

    /// Forgets the windows before `index`: they are not known any more.
    pub fn remove_before(&mut self, index: i64) {
        self.first = self.first.max(index);
        self.windows = self.windows.split_off(&index);
        self.barren.remove_before(index);
        if let Some(cut) = self.runs.remove_before(index)
            && let Some(start) = self.plan.next_with_places(index, cut.end - 1)
        {
            self.runs.insert(start..cut.end);
        }
    }

    /// Follows another plan with the same `per` from now on; what was given stays. Another `per` cuts
    /// time into other windows, and so needs a new schedule.
    pub fn set_plan(&mut self, plan: Plan) {
        assert_eq!(plan.per(), self.plan.per(), "a changed per needs a new schedule");
        self.plan = plan;
        self.barren = Runs::default();
        self.find_runs();
    }

    /// `None` for a window in which nothing is given.
    pub fn window(&self, index: i64) -> Option<&WindowState> {
        self.windows.get(&index)
    }

    /// All in which something is given, in order.
    pub fn windows(&self) -> impl Iterator<Item = (i64, &WindowState)> + '_ {
        self.windows.iter().map(|(index, state)| (*index, state))
    }

    /// The runs of windows that have no place for anyone who asks before they begin.
    pub fn full_runs(&self) -> impl Iterator<Item = Range<i64>> + '_ {
        self.runs.iter()
    }

    fn find_runs(&mut self) {
        self.runs = Runs::default();
        let indices: Vec<i64> = self.windows.keys().copied().collect();
        for index in indices {
            self.refresh(index);
        }
    }

    /// Brings the runs in line with a window that may have changed.
    fn refresh(&mut self, index: i64) {
        let empty = WindowState::default();
        let state = self.windows.get(&index).unwrap_or(&empty);
        let is_empty = state.count() == 0;
        if self.plan.considers(index) {
            let is_full = !places::has_free(&self.plan, state, index);
            let in_run = self.runs.end_after(index).is_some();
            // One that never has a place needs no run of its own: the plan knows it.
            if is_full && !in_run && places::has_places(&self.plan, index) {
                self.runs.insert(index..self.plan.run_end(index));
            }
            if in_run && !is_full {
                self.runs.cut(index..self.plan.run_end(index));
            }
        }
        if is_empty {
            self.windows.remove(&index);
        }
    }
}
