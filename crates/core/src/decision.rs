//! The answer to a check: allowed or refused, and how each limit stands.

use smallvec::SmallVec;

use crate::limit::Cost;
use crate::time::Instant;

/// Limits of one policy that a decision holds without touching the heap.
pub const INLINE_LIMITS: usize = 4;

/// The answer. Refusal is data, not an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    pub outcome: Outcome,
    pub cost: Cost,
    pub decided_at: Instant,
    /// One per limit of the policy, in its order.
    pub limits: SmallVec<[LimitReport; INLINE_LIMITS]>,
}

/// What became of the request as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It may happen now (and, unless this was a peek, it is counted).
    Allowed,
    /// It may happen at `retry_at`, if nobody else comes first. Nothing was counted.
    Refused { retry_at: Instant },
    /// It can never happen: the cost is above what a limit holds. Nothing was counted.
    NeverFits,
}

/// How one limit stands after the decision, and what it said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitReport {
    pub standing: Standing,
    pub verdict: Verdict,
    pub shadow: bool,
}

/// One limit for one key, as it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// What `used` is measured against: `max`, or a bucket's burst.
    pub max: u64,
    pub used: u64,
    pub resets_at: Instant,
}

impl Standing {
    pub fn remaining(&self) -> u64 {
        self.max.saturating_sub(self.used)
    }
}

/// What one limit says to one cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Fits,
    /// Fits at this instant, not a microsecond before.
    At(Instant),
    Never,
}

impl Decision {
    /// Room for a decision to be written into; it says nothing yet.
    pub fn blank() -> Self {
        Self {
            outcome: Outcome::NeverFits,
            cost: Cost::MIN,
            decided_at: Instant::MIN,
            limits: SmallVec::new(),
        }
    }

    pub fn allowed(&self) -> bool {
        self.outcome == Outcome::Allowed
    }

    /// When the same request passes, if it is refused and ever can.
    pub fn retry_at(&self) -> Option<Instant> {
        match self.outcome {
            Outcome::Refused { retry_at } => Some(retry_at),
            Outcome::Allowed | Outcome::NeverFits => None,
        }
    }

    /// Seconds until `retry_at`: rounded up, at least one.
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_at().map(|at| at.whole_secs_since(self.decided_at).max(1))
    }
}

impl LimitReport {
    /// Whether this limit is a reason for the refusal.
    pub fn refuses(&self) -> bool {
        !self.shadow && self.verdict != Verdict::Fits
    }
}
