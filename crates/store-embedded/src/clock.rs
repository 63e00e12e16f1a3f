//! The one place of this crate that reads time.
//!
//! Asking the system would be a third of a check. Where its own clock is the processor's counter, that is
//! read instead, and the system asked once a millisecond for what to add it to.

use std::cell::Cell;
use std::sync::LazyLock;

use rustix::time::{ClockId, clock_gettime};
use tollgate_core::Instant;
use tollgate_core::store::Clock;

/// A counter is added to what the system said for so long. So this is also the most that it can be
/// wrong by, whatever happens to it, and how late a clock that was set is noticed.
const TRUSTED_NANOS: u64 = 1_000_000;
/// The system was asked between two readings of the counter: they must be this close, or somebody
/// else had the processor in between.
const APART_NANOS: u64 = 500;
/// The counters that Linux takes its own time from where they can be read without asking it.
const COUNTERS: [&str; 2] = ["tsc", "arch_sys_counter"];

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Instant {
        let Some(counter) = &*COUNTER else { return instant(wall_nanos()) };
        let anchor = ANCHOR.get();
        let count = counter.raw();
        let wall_nanos = anchor.at(count, |from, to| counter.delta_as_nanos(from, to));
        instant(wall_nanos.unwrap_or_else(|| drop_anchor(counter)))
    }
}

static COUNTER: LazyLock<Option<quanta::Clock>> = LazyLock::new(counter);

thread_local! {
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor { count: 0, wall_nanos: i64::MIN }) };
}

/// Asks the system, and remembers for this thread what the counter showed then.
#[cold]
fn drop_anchor(counter: &quanta::Clock) -> i64 {
    let before = counter.raw();
    let wall_nanos = wall_nanos();
    let count = counter.raw();
    if counter.delta_as_nanos(before, count) <= APART_NANOS {
        ANCHOR.set(Anchor { count, wall_nanos });
    }
    wall_nanos
}

/// What the counter and the wall clock showed at one moment.
#[derive(Clone, Copy)]
struct Anchor {
    count: u64,
    wall_nanos: i64,
}

impl Anchor {
    /// The wall clock when the counter shows `count`. `None`: it went back, or was trusted for long
    /// enough.
    #[inline]
    fn at(self, count: u64, nanos_between: impl FnOnce(u64, u64) -> u64) -> Option<i64> {
        if count < self.count {
            return None;
        }
        let passed = nanos_between(self.count, count);
        if passed < TRUSTED_NANOS { self.wall_nanos.checked_add_unsigned(passed) } else { None }
    }
}

/// The processor's counter, if the system trusts it with its own time.
fn counter() -> Option<quanta::Clock> {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = std::fs::read_to_string(source).ok()?;
    COUNTERS.contains(&source.trim()).then(quanta::Clock::new)
}

fn wall_nanos() -> i64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

#[inline]
fn instant(nanos: i64) -> Instant {
    Instant::from_micros(nanos.div_euclid(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_to_the_wall_clock() {
        for _ in 0..1_000_000 {
            let before = wall_nanos();
            let now = SystemClock.now().as_micros();
            let after = wall_nanos();
            assert!(now >= before / 1_000 - 2, "{now} is behind {before}");
            assert!(now <= after / 1_000 + 2, "{now} is ahead of {after}");
        }
    }

    #[test]
    fn a_counter_is_trusted_forwards_and_for_a_moment_only() {
        let anchor = Anchor { count: 700, wall_nanos: 5_000 };
        // Two counts a nanosecond; as the counter's own, never below nought.
        let at = |count: u64| anchor.at(count, |from, to| to.saturating_sub(from) / 2);
        assert_eq!(at(700), Some(5_000));
        assert_eq!(at(700 + 2 * (TRUSTED_NANOS - 1)), Some(1_004_999));
        assert_eq!(at(700 + 2 * TRUSTED_NANOS), None);
        assert_eq!(at(699), None);
        assert_eq!(at(0), None);
    }
}
