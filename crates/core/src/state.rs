//! What a store keeps for one key, and what a receipt says of one spend.

use crate::bucket::{Bucket, FineInstant, FineSpan, PackedBucket};
use crate::fixed::Fixed;
use crate::limit::{Cost, Quota, Rule};
use crate::sliding::Sliding;
use crate::time::Instant;
use crate::unit_bucket::{FineUnits, UnitBucket};

/// The state of one key. It knows when it may be forgotten without knowing its limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    Fixed(Fixed),
    /// Boxed: most keys are not sliding, and all pay for the largest variant.
    Sliding(Box<Sliding>),
    Bucket(PackedBucket),
    /// Only keys that ever had a refund pay for remembering it.
    RefundedBucket(Box<Bucket>),
    /// Of a limit with a burst of its own.
    UnitBucket(Box<UnitBucket>),
}

/// Where one spend was counted: enough to take exactly that back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spend {
    Fixed { ends_at: Instant },
    Sliding { starts_at: Instant, leaves_at: Instant },
    Bucket { tat_after: FineInstant, spent: FineSpan, refunded_before: FineSpan },
    UnitBucket { since: Instant, end: FineUnits, expires_at: Instant },
}

impl State {
    pub fn fresh(rule: &Rule, now: Instant) -> Self {
        match rule {
            Rule::Fixed(window) => Self::Fixed(Fixed::fresh(window, now)),
            Rule::Sliding { per, resolution } => {
                Self::Sliding(Box::new(Sliding::fresh(*per, *resolution)))
            }
            Rule::Bucket { burst: None, .. } => Bucket::fresh(now).into(),
            Rule::Bucket { per, burst: Some(_) } => UnitBucket::fresh(*per, now).into(),
        }
    }

    /// From this instant on the key behaves as if it had never been used.
    #[inline]
    pub fn expires_at(&self) -> Instant {
        match self {
            Self::Fixed(fixed) => fixed.ends_at,
            Self::Sliding(sliding) => sliding.expires_at(),
            Self::Bucket(bucket) => bucket.unpack().expires_at(),
            Self::RefundedBucket(bucket) => bucket.expires_at(),
            Self::UnitBucket(bucket) => bucket.expires_at(),
        }
    }

    /// Has what stands behind this state brought from memory, for who will need it in a moment.
    #[inline]
    pub fn fetch(&self) {
        let latest = match self {
            Self::Fixed(_) | Self::Bucket(_) => return,
            Self::Sliding(sliding) => sliding.latest,
            Self::RefundedBucket(bucket) => bucket.latest,
            Self::UnitBucket(bucket) => bucket.latest,
        };
        std::hint::black_box(latest);
    }

    /// How the latest spend of `cost` is told from others. Ask right after the decision that made
    /// it, before the state changes again.
    #[inline]
    pub fn latest_spend(&self, quota: &Quota, cost: Cost) -> Spend {
        match self {
            Self::Fixed(fixed) => Spend::Fixed { ends_at: fixed.ends_at },
            Self::Sliding(sliding) => {
                let last = sliding.newest().expect("a spend leaves a bucket behind");
                let (starts_at, leaves_at) = (last.starts_at, sliding.leaves_at(last));
                Spend::Sliding { starts_at, leaves_at }
            }
            Self::Bucket(bucket) => spend_of(&bucket.unpack(), quota, cost),
            Self::RefundedBucket(bucket) => spend_of(bucket, quota, cost),
            Self::UnitBucket(bucket) => Spend::UnitBucket {
                since: bucket.since,
                end: bucket.end(),
                expires_at: bucket.expires_at(),
            },
        }
    }

    /// The latest instant this state is known to have seen; a clock that shows less is behind.
    #[inline]
    pub(crate) fn latest(&self, rule: &Rule, now: Instant) -> Instant {
        match (self, rule) {
            (Self::Fixed(fixed), Rule::Fixed(window)) if fixed.ends_at > now => {
                window.start_before(fixed.ends_at)
            }
            (Self::Sliding(sliding), _) => sliding.latest,
            (Self::Bucket(bucket), _) => bucket.latest(),
            (Self::RefundedBucket(bucket), _) => bucket.latest,
            (Self::UnitBucket(bucket), _) => bucket.latest,
            _ => Instant::MIN,
        }
    }
}

fn spend_of(bucket: &Bucket, quota: &Quota, cost: Cost) -> Spend {
    Spend::Bucket {
        tat_after: bucket.tat,
        spent: quota.emission.times(u64::from(cost.get())),
        refunded_before: bucket.refunded,
    }
}

impl From<Bucket> for State {
    fn from(bucket: Bucket) -> Self {
        match PackedBucket::pack(bucket) {
            Some(packed) => Self::Bucket(packed),
            None => Self::RefundedBucket(Box::new(bucket)),
        }
    }
}

impl From<UnitBucket> for State {
    fn from(bucket: UnitBucket) -> Self {
        Self::UnitBucket(Box::new(bucket))
    }
}

impl State {
    /// The bucket in it, if it is one that is kept as an instant.
    #[inline]
    pub fn as_bucket(&self) -> Option<Bucket> {
        match self {
            Self::Bucket(packed) => Some(packed.unpack()),
            Self::RefundedBucket(bucket) => Some(**bucket),
            Self::Fixed(_) | Self::Sliding(_) | Self::UnitBucket(_) => None,
        }
    }

    /// Puts a changed bucket back.
    #[inline]
    pub(crate) fn put_bucket(&mut self, bucket: Bucket) {
        match (&mut *self, PackedBucket::pack(bucket)) {
            (Self::Bucket(place), Some(packed)) => *place = packed,
            (Self::RefundedBucket(place), None) => **place = bucket,
            _ => *self = bucket.into(),
        }
    }

    pub(crate) fn put_unit_bucket(&mut self, bucket: UnitBucket) {
        match self {
            Self::UnitBucket(place) => **place = bucket,
            _ => *self = bucket.into(),
        }
    }
}

impl Spend {
    /// From this instant on a refund of it gives nothing back: where rates change, by the rate it was
    /// spent by.
    #[inline]
    pub fn expires_at(&self) -> Instant {
        match self {
            Self::Fixed { ends_at } => *ends_at,
            Self::Sliding { leaves_at, .. } => *leaves_at,
            Self::Bucket { tat_after, .. } => tat_after.ceil(),
            Self::UnitBucket { expires_at, .. } => *expires_at,
        }
    }
}
