//! `fixed`: a count in each aligned window.

use crate::decision::{Standing, Verdict};
use crate::limit::{Cost, Quota};
use crate::refund::Refund;
use crate::time::Instant;
use crate::window::Window;

/// The state of one key. The window is named by its end: that is what expiry needs, and a window
/// that has begun keeps its end even if the zone's rules are amended meanwhile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fixed {
    pub ends_at: Instant,
    pub count: u64,
}

impl Fixed {
    pub(crate) fn fresh(window: &Window, now: Instant) -> Self {
        Self { ends_at: window.bounds(now).ends_at, count: 0 }
    }

    fn at(state: Option<&Self>, window: &Window, now: Instant) -> Self {
        match state {
            Some(fixed) if fixed.ends_at > now => fixed.clone(),
            _ => Self::fresh(window, now),
        }
    }
}

#[inline]
pub(crate) fn verdict(
    state: Option<&Fixed>,
    window: &Window,
    quota: &Quota,
    now: Instant,
    cost: Cost,
) -> Verdict {
    let fixed = Fixed::at(state, window, now);
    if u64::from(cost.get()) > quota.max {
        Verdict::Never
    } else if fixed.count.saturating_add(u64::from(cost.get())) <= quota.max {
        Verdict::Fits
    } else {
        Verdict::At(fixed.ends_at)
    }
}

#[inline]
pub(crate) fn standing(
    state: Option<&Fixed>,
    window: &Window,
    quota: &Quota,
    now: Instant,
) -> Standing {
    let fixed = Fixed::at(state, window, now);
    Standing { max: quota.max, used: fixed.count, resets_at: fixed.ends_at }
}

#[inline]
pub(crate) fn spend(
    state: &mut Fixed,
    window: &Window,
    quota: &Quota,
    now: Instant,
    cost: Cost,
) -> Standing {
    *state = Fixed::at(Some(state), window, now);
    state.count = state.count.saturating_add(u64::from(cost.get()));
    Standing { max: quota.max, used: state.count, resets_at: state.ends_at }
}

pub(crate) fn refund(state: &mut Fixed, ends_at: Instant, cost: Cost, now: Instant) -> Refund {
    if state.ends_at != ends_at || now >= ends_at {
        return Refund::Expired;
    }
    state.count = state.count.saturating_sub(u64::from(cost.get()));
    Refund::Done
}
