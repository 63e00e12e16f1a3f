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
/// Time is added up in units of 2⁻⁸ µs, so that a reading is one multiplication and two shifts.
const FRACTION_BITS: u32 = 8;
/// What the length of a count is known to, in those units.
const SCALE_BITS: u32 = 32;
/// The counters that Linux takes its own time from where they can be read without asking it.
const COUNTERS: [&str; 2] = ["tsc", "arch_sys_counter"];

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Instant {
        let Some(counter) = &*COUNTER else { return instant(wall_nanos()) };
        let count = counter.clock.raw();
        ANCHOR.get().at(count).unwrap_or_else(|| drop_anchor(counter))
    }
}

static COUNTER: LazyLock<Option<Counter>> = LazyLock::new(Counter::find);

thread_local! {
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor::NONE) };
}

/// The processor's counter.
struct Counter {
    clock: quanta::Clock,
    /// How long a count is, in units of 2⁻⁸ µs, 32 more bits behind the point.
    scale: u64,
    /// For so many counts it is trusted.
    trusted: u64,
}

impl Counter {
    /// If the system trusts it with its own time.
    fn find() -> Option<Self> {
        let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let source = std::fs::read_to_string(source).ok()?;
        COUNTERS.contains(&source.trim()).then(quanta::Clock::new).and_then(Self::of)
    }

    /// `None`: it ticks so fast or so slowly that it cannot be the time.
    fn of(clock: quanta::Clock) -> Option<Self> {
        let nanos = clock.delta_as_nanos(0, 1 << SCALE_BITS);
        let scale = nanos.checked_mul(1 << FRACTION_BITS)? / 1_000;
        let trusted =
            u64::try_from((u128::from(TRUSTED_NANOS) << SCALE_BITS) / u128::from(nanos.max(1)));
        let trusted = trusted.ok()?;
        // So that no product overflows.
        scale.checked_mul(trusted)?;
        (scale > 0).then_some(Self { clock, scale, trusted })
    }
}

/// Asks the system, and remembers for this thread what the counter showed then.
#[cold]
fn drop_anchor(counter: &Counter) -> Instant {
    let before = counter.clock.raw();
    let wall_nanos = wall_nanos();
    let count = counter.clock.raw();
    if counter.clock.delta_as_nanos(before, count) <= APART_NANOS {
        ANCHOR.set(Anchor::new(count, wall_nanos, counter));
    }
    instant(wall_nanos)
}

/// What the counter and the wall clock showed at one moment, and what is needed to go on from there.
#[derive(Clone, Copy)]
struct Anchor {
    count: u64,
    trusted: u64,
    scale: u64,
    /// In units of 2⁻⁸ µs.
    wall: i64,
}

impl Anchor {
    const NONE: Self = Self { count: 0, trusted: 0, scale: 0, wall: 0 };

    fn new(count: u64, wall_nanos: i64, counter: &Counter) -> Self {
        let wall = (i128::from(wall_nanos) << FRACTION_BITS).div_euclid(1_000);
        let wall = wall as i64;
        Self { count, trusted: counter.trusted, scale: counter.scale, wall }
    }

    /// The wall clock when the counter shows `count`. `None`: it went back, or was trusted for long
    /// enough.
    #[inline]
    fn at(self, count: u64) -> Option<Instant> {
        // One that went back has passed more than any that is trusted.
        let passed = count.wrapping_sub(self.count);
        (passed < self.trusted).then(|| {
            let passed = (passed * self.scale) >> SCALE_BITS;
            Instant::from_micros(self.wall.saturating_add_unsigned(passed) >> FRACTION_BITS)
        })
    }
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
        // Two counts a nanosecond.
        let scale = (1 << (SCALE_BITS + FRACTION_BITS)) / 2_000;
        let counter = Counter { clock: quanta::Clock::new(), scale, trusted: 2 * TRUSTED_NANOS };
        let at =
            |count: u64| Anchor::new(700, 5_000_999, &counter).at(count).map(Instant::as_micros);
        assert_eq!(at(700), Some(5_000));
        assert_eq!(at(700 + 2_000), Some(5_001));
        assert_eq!(at(700 + 2 * (TRUSTED_NANOS - 1)), Some(6_000));
        assert_eq!(at(700 + 2 * TRUSTED_NANOS), None);
        assert_eq!(at(699), None);
        assert_eq!(at(0), None);
        assert_eq!(Anchor::NONE.at(0), None);
    }
}
