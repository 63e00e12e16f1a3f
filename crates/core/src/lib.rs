//! Decides: state, request and `now` go in, a decision and the new state come out.
//!
//! Every algorithm exists once, here. There is no I/O, no clock, no randomness and no float; a
//! store is whatever lends the states of a request under its locks ([`States`]) and keeps what
//! [`decide`] made of them.

mod bucket;
mod decide;
mod decision;
mod encoding;
mod fixed;
mod limit;
mod refund;
pub mod schedule;
mod sliding;
mod state;
pub mod store;
mod time;
mod unit_bucket;
mod window;

pub use bucket::{Bucket, FineInstant, FineSpan, PackedBucket};
pub use decide::{Claim, Intent, States, decide, decide_into, decide_one};
pub use decision::{Decision, INLINE_LIMITS, LimitReport, Outcome, Standing, Verdict};
pub use encoding::{Malformed, Reader, Writer};
pub use fixed::Fixed;
pub use limit::{Cost, Limit, MAX_BUCKETS, MAX_PER, MAX_UNITS, MaxBy, Quota, Rule};
pub use refund::{Refund, refund};
pub use sliding::{Counted, Sliding};
pub use state::{Spend, State};
pub use time::{Instant, Span};
pub use unit_bucket::{FineUnits, UnitBucket};
pub use window::{Bounds, Unit, Window};
