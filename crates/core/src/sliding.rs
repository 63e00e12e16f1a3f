//! `sliding`: sparse counts in small buckets; at most `max` in any interval of the window's length.
//!
//! A bucket counts until its last microsecond is `per` old, so no unit ever leaves early. With the
//! default resolution a key holds at most 61 buckets, and never more than it holds units.

use crate::decision::{Standing, Verdict};
use crate::limit::{Cost, Quota};
use crate::refund::Refund;
use crate::time::{Instant, Span};

/// The state of one key: non-empty buckets, oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sliding {
    /// From a bucket's start until it leaves: `resolution − 1 + per`.
    pub lifetime: Span,
    /// The last instant that changed this state. Buckets were dropped by it, so none may be
    /// counted by an earlier clock.
    pub latest: Instant,
    buckets: Vec<Counted>,
    /// What all of them hold, so that a check need not add them up.
    total: u64,
}

/// Units spent in the bucket that starts at `starts_at`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    pub starts_at: Instant,
    pub count: u64,
}

impl Sliding {
    pub(crate) fn fresh(per: Span, resolution: Span) -> Self {
        let lifetime = per.as_micros().saturating_add(resolution.as_micros() - 1);
        let lifetime = Span::from_micros(lifetime).expect("per is at least one microsecond");
        Self::new(lifetime, Instant::MIN, Vec::new())
    }

    /// As it was encoded: `buckets` non-empty, oldest first.
    pub fn new(lifetime: Span, latest: Instant, buckets: Vec<Counted>) -> Self {
        let total = total(&buckets);
        Self { lifetime, latest, buckets, total }
    }

    /// Non-empty, oldest first.
    pub fn buckets(&self) -> &[Counted] {
        &self.buckets
    }

    pub(crate) fn leaves_at(&self, bucket: &Counted) -> Instant {
        bucket.starts_at.plus(self.lifetime)
    }

    /// How many buckets count no more at `now`, and what the others hold.
    #[inline]
    fn at(&self, now: Instant) -> (usize, u64) {
        match self.buckets.first() {
            Some(oldest) if self.leaves_at(oldest) <= now => {
                let gone = self.buckets.partition_point(|bucket| self.leaves_at(bucket) <= now);
                (gone, total(&self.buckets[gone..]))
            }
            _ => (0, self.total),
        }
    }

    /// When everything counted has left; not before `latest`, which must not be forgotten.
    pub(crate) fn expires_at(&self) -> Instant {
        self.buckets.last().map_or(self.latest, |bucket| self.leaves_at(bucket).max(self.latest))
    }
}

fn total(buckets: &[Counted]) -> u64 {
    buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.count))
}

#[inline]
pub(crate) fn verdict(state: Option<&Sliding>, quota: &Quota, now: Instant, cost: Cost) -> Verdict {
    let cost = u64::from(cost.get());
    if cost > quota.max {
        return Verdict::Never;
    }
    let Some(sliding) = state else { return Verdict::Fits };
    let (gone, used) = sliding.at(now);
    let wanted = used.saturating_add(cost);
    if wanted <= quota.max {
        Verdict::Fits
    } else {
        Verdict::At(when_left(sliding, gone, wanted - quota.max))
    }
}

#[inline]
pub(crate) fn standing(state: Option<&Sliding>, quota: &Quota, now: Instant) -> Standing {
    let (used, resets_at) = match state {
        None => (0, now),
        Some(sliding) => (sliding.at(now).1, sliding.expires_at().max(now)),
    };
    Standing { max: quota.max, used, resets_at }
}

/// When `wanted` more units have left than the `gone` buckets held. There are that many: the cost
/// alone fits.
fn when_left(sliding: &Sliding, gone: usize, wanted: u64) -> Instant {
    let mut left: u64 = 0;
    for bucket in &sliding.buckets[gone..] {
        left = left.saturating_add(bucket.count);
        if left >= wanted {
            return sliding.leaves_at(bucket);
        }
    }
    unreachable!("a cost within max waits at most until the window is empty")
}

#[inline]
pub(crate) fn spend(sliding: &mut Sliding, resolution: Span, now: Instant, cost: Cost) {
    let (gone, used) = sliding.at(now);
    if gone > 0 {
        sliding.buckets.drain(..gone);
    }
    sliding.latest = now;
    let starts_at = now.floor_to(resolution);
    let cost = u64::from(cost.get());
    sliding.total = used.saturating_add(cost);
    match sliding.buckets.last_mut() {
        Some(last) if last.starts_at >= starts_at => last.count = last.count.saturating_add(cost),
        _ => sliding.buckets.push(Counted { starts_at, count: cost }),
    }
}

pub(crate) fn refund(
    sliding: &mut Sliding,
    starts_at: Instant,
    leaves_at: Instant,
    cost: Cost,
    now: Instant,
) -> Refund {
    let now = now.max(sliding.latest);
    if now >= leaves_at {
        return Refund::Expired;
    }
    match sliding.buckets.binary_search_by_key(&starts_at, |bucket| bucket.starts_at) {
        Ok(found) => {
            sliding.latest = now;
            let bucket = &mut sliding.buckets[found];
            bucket.count = bucket.count.saturating_sub(u64::from(cost.get()));
            if bucket.count == 0 {
                sliding.buckets.remove(found);
            }
            sliding.total = total(&sliding.buckets);
            Refund::Done
        }
        Err(_) => Refund::Expired,
    }
}
