//! The one place of this crate that reads time.

use rustix::time::{ClockId, clock_gettime};
use tollgate_core::Instant;
use tollgate_core::store::Clock;

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    /// Asked for every decision, so without the detour over a checked difference from the epoch.
    #[inline]
    fn now(&self) -> Instant {
        let time = clock_gettime(ClockId::Realtime);
        Instant::from_secs(time.tv_sec).plus_micros(time.tv_nsec / 1_000)
    }
}
