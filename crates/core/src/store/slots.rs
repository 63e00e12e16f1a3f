//! Slots: what a schedule gave to events, and how a group of events is given theirs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::schedule::{Place, Plan, Schedule, WindowState};
use crate::time::{Instant, Span};

/// The instant a schedule gave an event. Kept as it is, for audit; a cancel is noted beside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    pub event_id: String,
    pub policy: String,
    /// Of the policy that gave it.
    pub version: u64,
    pub requested_at: Instant,
    /// Whether the caller named `requested_at`; if not, it is the moment of asking.
    pub is_requested_by_caller: bool,
    pub scheduled_at: Instant,
    /// The length of the windows it was given in.
    pub per: Span,
    pub position: u64,
    pub created_at: Instant,
    pub cancelled_at: Option<Instant>,
}

impl Slot {
    /// Where it stands in windows of its own `per`.
    fn place(&self) -> Place {
        let window = self.scheduled_at.as_micros().div_euclid(self.per.as_micros());
        Place { window, position: self.position, at: self.scheduled_at }
    }

    /// Takes it out of the window it counts in, which is `per` long.
    pub fn leave(&self, window: &mut WindowState, per: Span) {
        if self.per == per {
            window.taken.remove(self.position);
        } else {
            window.guests = window.guests.saturating_sub(1);
        }
    }
}

/// Takes a cancelled slot's place out of the schedule; whether it was there.
pub fn give_back(schedule: &mut Schedule, slot: &Slot) -> bool {
    if slot.per == schedule.plan().per() {
        schedule.give_back(&slot.place())
    } else {
        schedule.give_back_guest(slot.scheduled_at)
    }
}

/// One event that wants a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotAsk {
    pub event_id: String,
    /// `None`: as soon as possible.
    pub requested_at: Option<Instant>,
}

/// Events that want slots of one policy.
#[derive(Clone, Debug)]
pub struct ScheduleAsk {
    pub policy: String,
    pub version: u64,
    /// Of the catalogue it was made from.
    pub epoch: Option<u64>,
    pub plan: Plan,
    /// Slots older than this are removed, and none is given so far back.
    pub retention: Span,
    pub events: Vec<SlotAsk>,
}

/// What an event is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SlotAnswer {
    /// Its slot, made now.
    Given(Slot),
    /// Its slot, the same as before.
    Repeated(Slot),
    /// The id has a slot that was asked for otherwise.
    Differs(Slot),
    /// The id had a slot, and it was cancelled.
    Cancelled(Slot),
    /// Nothing is free up to the horizon.
    HorizonFull,
    /// The time asked for lies before all that is kept.
    TooOld { oldest: Instant },
}

/// What came of a group.
#[derive(Clone, Debug, Default)]
pub struct Assigned {
    /// In the order of the events.
    pub answers: Vec<SlotAnswer>,
    pub slots: Vec<Slot>,
    /// The windows they are in.
    pub windows: BTreeSet<i64>,
}

/// The first window that must be known before `ask` is given its slots at `now`.
pub fn first_window(ask: &ScheduleAsk, now: Instant) -> i64 {
    let oldest = now.minus(ask.retention);
    let named = ask.events.iter().filter_map(|event| event.requested_at);
    let earliest = named.filter(|at| *at >= oldest).fold(now, Instant::min);
    ask.plan.index_of(earliest.decidable())
}

/// Counts slots again in windows of `per`. Each is its instant, the `per` it was given in, and its
/// position there.
pub fn count_again(
    per: Span,
    slots: impl IntoIterator<Item = (Instant, Span, u64)>,
) -> BTreeMap<i64, WindowState> {
    let mut windows: BTreeMap<i64, WindowState> = BTreeMap::new();
    for (at, given_in, position) in slots {
        let window = windows.entry(at.as_micros().div_euclid(per.as_micros())).or_default();
        if given_in == per {
            window.taken.insert(position);
        } else {
            window.guests = window.guests.saturating_add(1);
        }
    }
    windows
}

/// Gives every event of `ask` its slot, in order. `known` holds the slots that ids already have.
pub fn assign_all(
    ask: &ScheduleAsk,
    mut known: HashMap<String, Slot>,
    schedule: &mut Schedule,
    now: Instant,
) -> Assigned {
    let oldest = now.minus(ask.retention);
    let mut assigned = Assigned::default();
    for event in &ask.events {
        let answer = match known.get(&event.event_id) {
            Some(slot) => repeat(slot, &ask.policy, event),
            None => match assign(ask, event, schedule, now, oldest) {
                Ok(slot) => {
                    assigned.windows.insert(schedule.plan().index_of(slot.scheduled_at));
                    assigned.slots.push(slot.clone());
                    known.insert(event.event_id.clone(), slot.clone());
                    SlotAnswer::Given(slot)
                }
                Err(refused) => refused,
            },
        };
        assigned.answers.push(answer);
    }
    assigned
}

/// What an event is told that has its slot already.
pub fn repeat(slot: &Slot, policy: &str, event: &SlotAsk) -> SlotAnswer {
    let same_time = match event.requested_at {
        Some(at) => at == slot.requested_at,
        None => !slot.is_requested_by_caller,
    };
    if slot.policy != policy || !same_time {
        SlotAnswer::Differs(slot.clone())
    } else if slot.cancelled_at.is_some() {
        SlotAnswer::Cancelled(slot.clone())
    } else {
        SlotAnswer::Repeated(slot.clone())
    }
}

fn assign(
    ask: &ScheduleAsk,
    event: &SlotAsk,
    schedule: &mut Schedule,
    now: Instant,
    oldest: Instant,
) -> Result<Slot, SlotAnswer> {
    let requested_at = event.requested_at.unwrap_or(now);
    if requested_at < oldest {
        return Err(SlotAnswer::TooOld { oldest });
    }
    let place = schedule
        .assign(requested_at, seed(&event.event_id))
        .map_err(|_| SlotAnswer::HorizonFull)?;
    Ok(Slot {
        event_id: event.event_id.clone(),
        policy: ask.policy.clone(),
        version: ask.version,
        requested_at,
        is_requested_by_caller: event.requested_at.is_some(),
        scheduled_at: place.at,
        per: ask.plan.per(),
        position: place.position,
        created_at: now,
        cancelled_at: None,
    })
}

/// FNV-1a: where a random spread puts an event must be the same on every machine, for ever.
fn seed(event_id: &str) -> u64 {
    event_id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// What to list: the slots of a policy in an interval, in order of their instants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotQuery {
    pub policy: String,
    pub from: Instant,
    /// Not included.
    pub to: Instant,
    /// The last slot of the page before.
    pub after: Option<(Instant, String)>,
    pub limit: u32,
}

/// How full one window is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowFill {
    pub number: i64,
    pub count: u64,
}

/// A window whose count is not what its slots say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drift {
    pub starts_at: Instant,
    pub counted: u64,
    pub slots: u64,
}

/// What a recount found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recount {
    pub windows: u64,
    pub slots: u64,
    pub drifts: Vec<Drift>,
}

impl Recount {
    /// Holds the slots of each window, by its number, against what its window says.
    pub fn of(per: Span, slots: &BTreeMap<i64, u64>, counted: &BTreeMap<i64, u64>) -> Self {
        let numbers: BTreeSet<i64> = slots.keys().chain(counted.keys()).copied().collect();
        let of = |counts: &BTreeMap<i64, u64>, number| counts.get(number).copied().unwrap_or(0);
        let drifts = numbers.iter().map(|number| Drift {
            starts_at: Instant::from_micros(number.saturating_mul(per.as_micros())),
            counted: of(counted, number),
            slots: of(slots, number),
        });
        Self {
            windows: counted.values().filter(|count| **count > 0).count() as u64,
            slots: slots.values().sum(),
            drifts: drifts.filter(|drift| drift.counted != drift.slots).collect(),
        }
    }
}
