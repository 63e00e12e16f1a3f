//! A limit: at most `max` units per window, counted by some of the subject's attributes.

use crate::bucket::Emission;
use crate::time::Span;
use crate::window::Window;

/// The largest `max` and `burst`: what a JSON number carries exactly.
pub const MAX_UNITS: u64 = (1 << 53) - 1;
/// The longest span a window may have: ten years of 366 days.
pub const MAX_PER: Span = Span::from_secs(3660 * 86_400);
/// A sliding window has at most this many buckets, so that a key's state stays bounded.
pub const MAX_BUCKETS: i64 = 3600;

/// Units asked for: at least one.
pub type Cost = std::num::NonZeroU32;

/// One limit of a policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Limit {
    pub name: String,
    /// Units per window, before `max_by` and overrides.
    pub max: u64,
    pub rule: Rule,
    /// The attributes it counts by, in order. Empty: one count for everybody.
    pub by: Vec<String>,
    pub max_by: Option<MaxBy>,
    /// The counted values are stored only as a keyed hash.
    pub private: bool,
    /// Counts and reports, never refuses.
    pub shadow: bool,
    /// An IPv6 address in the attribute `ip` counts by this many leading bits.
    pub ipv6_prefix: u8,
}

/// The algorithm with its own settings.
#[derive(Clone, PartialEq, Debug)]
pub enum Rule {
    /// At most `max` in each aligned window.
    Fixed(Window),
    /// At most `max` in any interval of length `per`, counted in buckets of `resolution`.
    Sliding { per: Span, resolution: Span },
    /// Average rate `max / per`; at most `burst` (default `max`) at one instant.
    Bucket { per: Span, burst: Option<u64> },
}

/// `max` by the value of one attribute; a subject without a listed value gets the limit's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MaxBy {
    pub attribute: String,
    /// Sorted by value.
    pub values: Vec<(String, u64)>,
}

impl MaxBy {
    /// Where in `values` a value stands, if it is listed.
    pub fn position(&self, value: &str) -> Option<usize> {
        self.values.binary_search_by(|(listed, _)| listed.as_str().cmp(value)).ok()
    }
}

impl Rule {
    /// The default resolution of a sliding window: a sixtieth, rounded up.
    pub fn default_resolution(per: Span) -> Span {
        Span::from_micros(per.as_micros().div_euclid(60) + i64::from(per.as_micros() % 60 != 0))
            .expect("a sixtieth of a span, rounded up, is at least one microsecond")
    }

    /// What this rule lets through for one key when its maximum is `max`.
    pub fn quota(&self, max: u64) -> Quota {
        match self {
            Self::Fixed(_) | Self::Sliding { .. } => {
                Quota { max, rate: max, emission: Emission::NONE }
            }
            Self::Bucket { per, burst } => {
                // A maximum of 0 lets nothing through, whatever the burst says.
                let holds = if max == 0 { 0 } else { burst.unwrap_or(max) };
                let emission = Emission::of(*per, max);
                let kept = if burst.is_some() { Emission::NONE } else { emission };
                Quota { max: holds.min(emission.max_burst()), rate: max, emission: kept }
            }
        }
    }
}

/// How much one key may hold at once (`max`, or a bucket's burst), and a bucket's refill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    pub max: u64,
    /// The limit's `max`, also where a bucket holds another number at once.
    pub(crate) rate: u64,
    /// Of a bucket that is kept as an instant: one without a burst of its own.
    pub(crate) emission: Emission,
}
