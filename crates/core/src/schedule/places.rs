//! The place a request gets in one window, and whether a window has any.
//!
//! Knows one window at a time; which window is asked next is the schedule's business.

use std::ops::Range;

use smallvec::SmallVec;

use super::Place;
use super::plan::{Plan, Spread};
use super::positions::{PositionSet, Stretch};
use super::state::WindowState;
use crate::time::Instant;

/// The place in a window for a request that may be given any instant within `reach`, if there is one for it.
pub(super) fn find(
    plan: &Plan,
    state: &WindowState,
    index: i64,
    reach: &Range<Instant>,
    seed: u64,
) -> Option<Place> {
    let starts_at = plan.starts_at(index);
    if state.count() >= plan.max() || !within_share(plan, state, index, reach.start) {
        return None;
    }
    let open = plan.open_ranges(index, reach);
    match plan.spread() {
        Spread::Even => {
            let stretches: SmallVec<[Stretch; 4]> = open
                .iter()
                .map(|open| Stretch {
                    first: reversed_at(plan, open.start.micros_since(starts_at)) as u64,
                    last: (reversed_at(plan, open.end.micros_since(starts_at)) - 1) as u64,
                })
                .collect();
            let position = state.taken.first_free(&stretches, plan.max())?;
            let at = starts_at.plus_micros(offset_of(plan, position));
            Some(Place { window: index, position, at })
        }
        Spread::Random => {
            let position = state.taken.first_free(&[Stretch::WHOLE], plan.max())?;
            let micros: i64 = open.iter().map(|open| open.end.micros_since(open.start)).sum();
            let mut ahead = fraction_of(micros, mix(seed, index));
            for open in &open {
                let length = open.end.micros_since(open.start);
                if ahead < length {
                    let at = open.start.plus_micros(ahead);
                    return Some(Place { window: index, position, at });
                }
                ahead -= length;
            }
            None
        }
    }
}

/// Whether anyone who asks before the window begins still gets a place in it.
pub(super) fn has_free(plan: &Plan, state: &WindowState, index: i64) -> bool {
    if plan.calendar().is_none() || state.count() >= plan.max() {
        return state.count() < plan.max();
    }
    find(plan, state, index, &(plan.starts_at(index)..Instant::MAX), 0).is_some()
}

/// Whether the window has any place when it is empty.
pub(super) fn has_places(plan: &Plan, index: i64) -> bool {
    has_free(plan, &WindowState::default(), index)
}

/// A request from the middle of a window may use it only while fewer than its share, the part of
/// `max` that the rest of the window is of the whole, is taken of that rest.
fn within_share(plan: &Plan, state: &WindowState, index: i64, requested: Instant) -> bool {
    let offset = requested.micros_since(plan.starts_at(index));
    if offset <= 0 {
        return true;
    }
    let per = plan.per().as_micros();
    let share = (u128::from(plan.max()) * (per - offset) as u128 / per as u128) as u64;
    let taken: &PositionSet = &state.taken;
    match plan.spread() {
        Spread::Even => {
            let rest = Stretch { first: reversed_at(plan, offset) as u64, last: u64::MAX };
            taken.len() < share || taken.count_in(rest) < share
        }
        // Nothing tells where the others stand: all of them count.
        Spread::Random => state.count() < share,
    }
}

fn offset_of(plan: &Plan, position: u64) -> i64 {
    let per = plan.per().as_micros() as u128;
    ((per * u128::from(position.reverse_bits())) >> 64) as i64
}

/// The least reversed position whose offset is at least `offset`; 2^64 for the window's end.
fn reversed_at(plan: &Plan, offset: i64) -> u128 {
    ((offset as u128) << 64).div_ceil(plan.per().as_micros() as u128)
}

/// `micros × number / 2^64`, rounded down.
fn fraction_of(micros: i64, number: u64) -> i64 {
    ((micros as u128 * u128::from(number)) >> 64) as i64
}

/// SplitMix64's finaliser (Steele, Lea, Flood 2014) over seed and window.
fn mix(seed: u64, index: i64) -> u64 {
    let mut mixed = seed ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2 {
        mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
    }
    mixed
}
