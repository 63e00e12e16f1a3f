//! Taking one spend back, without ever leaving a key better off than if it had not been spent.

use crate::limit::Cost;
use crate::state::{Spend, State};
use crate::time::Instant;
use crate::{bucket, fixed, sliding, unit_bucket};

/// What became of a refund in one limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refund {
    Done,
    /// The window, bucket or debt it was counted in is gone: there is nothing left to give.
    Expired,
}

/// Takes `spend` back from `state`. The caller makes sure that this happens once.
pub fn refund(state: &mut State, spend: &Spend, cost: Cost, now: Instant) -> Refund {
    let now = now.decidable();
    match (state, spend) {
        (State::Fixed(state), Spend::Fixed { ends_at }) => {
            fixed::refund(state, *ends_at, cost, now)
        }
        (State::Sliding(state), Spend::Sliding { starts_at, leaves_at }) => {
            sliding::refund(state, *starts_at, *leaves_at, cost, now)
        }
        (State::UnitBucket(state), Spend::UnitBucket { since, end, .. }) => {
            unit_bucket::refund(state, *since, *end, cost, now)
        }
        (state, Spend::Bucket { tat_after, spent, refunded_before }) => {
            let Some(mut bucket) = state.as_bucket() else { return Refund::Expired };
            let refund = bucket::refund(&mut bucket, *tat_after, *spent, *refunded_before, now);
            if refund == Refund::Done {
                state.put_bucket(bucket);
            }
            refund
        }
        // Another algorithm counts under another key, so this receipt's count is gone. A bucket that
        // got or lost a burst of its own is counted otherwise than its receipt knows.
        _ => Refund::Expired,
    }
}
