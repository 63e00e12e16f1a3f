//! The one place of this crate that reads time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate_core::Instant;
use tollgate_core::store::Clock;

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Instant::from_micros(micros(since)),
            Err(before) => Instant::from_micros(-micros(before.duration())),
        }
    }
}

/// In 64 bits: read for every decision.
fn micros(span: Duration) -> i64 {
    let secs = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    secs.saturating_mul(1_000_000).saturating_add(i64::from(span.subsec_micros()))
}
