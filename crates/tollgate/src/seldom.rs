//! What would be said with every request while something is away, said once a second.
//!
//! Only for the log: no decision looks at this, nor at its clock.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant as Stopwatch;

const PAUSE: Duration = Duration::from_secs(1);

/// One thing to say.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Said>);

#[derive(Debug, Default)]
struct Said {
    at: Option<Stopwatch>,
    left_out: u64,
}

impl Seldom {
    pub const fn new() -> Self {
        Self(Mutex::new(Said { at: None, left_out: 0 }))
    }

    /// If it is time to say it: how often it was left out since the last time.
    pub fn due(&self) -> Option<u64> {
        self.due_at(Stopwatch::now())
    }

    fn due_at(&self, now: Stopwatch) -> Option<u64> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.at.is_some_and(|at| now.saturating_duration_since(at) < PAUSE) {
            said.left_out += 1;
            return None;
        }
        said.at = Some(now);
        Some(std::mem::take(&mut said.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_a_second_with_how_often_it_was_not() {
        let (seldom, start) = (Seldom::new(), Stopwatch::now());
        let due = |millis| seldom.due_at(start + Duration::from_millis(millis));
        assert_eq!(due(0), Some(0));
        assert_eq!([due(1), due(500), due(999)], [None; 3]);
        assert_eq!(due(1_000), Some(3));
        assert_eq!(due(1_001), None);
        assert_eq!(due(60_000), Some(1));
        assert_eq!(due(61_000), Some(0));
    }
}
