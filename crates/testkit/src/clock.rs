//! A clock that stands still until it is told otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tollgate::{Clock, Instant, Span};

/// Time for tests. Clones share one hand, so the test can move what the store reads.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// Thursday 2026-03-05 12:34:56.789012 UTC: inside a window of every length, at no edge.
    pub const START: Instant = Instant::from_micros(1_772_714_096_789_012);

    pub fn start() -> Self {
        Self::at(Self::START)
    }

    pub fn at(now: Instant) -> Self {
        Self(Arc::new(AtomicI64::new(now.as_micros())))
    }

    /// For `Tollgate::open_with_clock`.
    pub fn shared(&self) -> Arc<dyn Clock> {
        Arc::new(self.clone())
    }

    pub fn set(&self, now: Instant) {
        self.0.store(now.as_micros(), Ordering::SeqCst);
    }

    pub fn advance(&self, by: Span) {
        self.set(self.now().plus(by));
    }

    pub fn step_back(&self, by: Span) {
        self.set(self.now().minus(by));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        Instant::from_micros(self.0.load(Ordering::SeqCst))
    }
}
