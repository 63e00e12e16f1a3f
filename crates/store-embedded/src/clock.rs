//! The one place of this crate that reads time.

use std::time::{SystemTime, UNIX_EPOCH};

use tollgate_core::Instant;
use tollgate_core::store::Clock;

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        let micros = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
        };
        Instant::from_micros(micros)
    }
}
