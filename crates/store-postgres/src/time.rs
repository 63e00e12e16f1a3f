//! The one place of this crate that reads time on this machine.
//!
//! Decisions use the database's clock, read behind the locks. Between decisions the same clock is
//! carried forward here by the machine's steady one.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

// The runtime's, which a simulation can stop.
use tokio::time::Instant as Stopwatch;
use tollgate_core::Instant;
use tollgate_core::store::Clock;

/// More than a round trip to a database far away.
const TOLERANCE_MICROS: i64 = 250_000;

#[derive(Debug)]
pub(crate) struct Time {
    /// Tests say what time it is.
    injected: Option<Arc<dyn Clock>>,
    started: Stopwatch,
    /// From the steady clock to the database's.
    offset_micros: AtomicI64,
    /// As last seen: nothing may be decided before it.
    swept_at_micros: AtomicI64,
}

impl Time {
    pub(crate) fn new(injected: Option<Arc<dyn Clock>>) -> Self {
        Self {
            injected,
            started: Stopwatch::now(),
            offset_micros: AtomicI64::new(0),
            swept_at_micros: AtomicI64::new(i64::MIN),
        }
    }

    /// Goes on whatever the database's clock does: for measuring how long ago something was.
    pub(crate) fn steady_micros(&self) -> i64 {
        match &self.injected {
            Some(clock) => clock.now().as_micros(),
            None => i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX),
        }
    }

    /// The database's clock was just read. What it is by that.
    pub(crate) fn read(&self, database_micros: i64) -> Instant {
        match &self.injected {
            Some(clock) => clock.now(),
            None => {
                self.offset_micros.store(database_micros - self.steady_micros(), Relaxed);
                Instant::from_micros(database_micros)
            }
        }
    }

    /// The same for an answer to what was sent then. One that lay about for long says nothing of now.
    pub(crate) fn read_since(&self, sent_micros: i64, database_micros: i64) {
        if self.steady_micros() - sent_micros < TOLERANCE_MICROS {
            self.read(database_micros);
        }
    }

    /// What to decide by when the clock shows this, and this is how far a sweep has been.
    pub(crate) fn not_before(&self, clock: Instant, swept_at_micros: i64) -> Instant {
        self.raise_swept_at(swept_at_micros);
        clock.max(Instant::from_micros(swept_at_micros))
    }

    /// How far a sweep has been, as far as is known here.
    pub(crate) fn swept_at(&self) -> Instant {
        Instant::from_micros(self.swept_at_micros.load(Relaxed))
    }

    pub(crate) fn raise_swept_at(&self, micros: i64) {
        self.swept_at_micros.fetch_max(micros, Relaxed);
    }

    /// About what the database's clock shows.
    pub(crate) fn now(&self) -> Instant {
        let micros = match &self.injected {
            Some(clock) => clock.now().as_micros(),
            None => self.steady_micros().saturating_add(self.offset_micros.load(Relaxed)),
        };
        Instant::from_micros(micros).max(self.swept_at())
    }

    /// The same, and not before `latest`: a slow answer to another lane sets what is carried forward
    /// back a little. Tests set their clock back on purpose.
    pub(crate) fn now_after(&self, latest: Instant) -> Instant {
        let now = self.now();
        if self.injected.is_some() { now } else { now.max(latest) }
    }

    /// How far [`Time::now`] may be behind the database's clock for a decision to be made by it; it
    /// is never ahead, unless one of the clocks was set. `None`: tests say what time it is.
    pub(crate) fn tolerance_micros(&self) -> Option<i64> {
        self.injected.is_none().then_some(TOLERANCE_MICROS)
    }

    pub(crate) fn is_injected(&self) -> bool {
        self.injected.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_lay_about_does_not_set_the_clock() {
        let time = Time::new(None);
        let (noon, later) = (1_900_000_000_000_000, 1_900_000_060_000_000);
        time.read(later);
        // What the database's clock showed a minute ago, in an answer that is looked at now.
        time.read_since(time.steady_micros() - 60_000_000, noon);
        assert!(time.now().as_micros() >= later);
        time.read_since(time.steady_micros(), noon);
        assert!(time.now().as_micros() < later, "what was just said is believed, also backwards");
    }
}
