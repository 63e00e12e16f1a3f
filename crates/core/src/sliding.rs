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
    /// What all buckets hold, so that a check need not add them up.
    total: u64,
    /// Where the oldest bucket starts; `MAX` if there is none.
    oldest: Instant,
    /// Here, and not behind the others, so that most checks touch no more memory. It is empty if
    /// there are no buckets at all.
    newest: Counted,
    /// All but the newest, oldest first.
    older: Vec<Counted>,
}

/// Units spent in the bucket that starts at `starts_at`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    pub starts_at: Instant,
    pub count: u64,
}

impl Counted {
    const NONE: Self = Self { starts_at: Instant::MIN, count: 0 };
}

impl Sliding {
    pub(crate) fn fresh(per: Span, resolution: Span) -> Self {
        let lifetime = per.as_micros().saturating_add(resolution.as_micros() - 1);
        let lifetime = Span::from_micros(lifetime).expect("per is at least one microsecond");
        Self::new(lifetime, Instant::MIN, Vec::new())
    }

    /// As it was encoded: `buckets` non-empty, oldest first.
    pub fn new(lifetime: Span, latest: Instant, mut buckets: Vec<Counted>) -> Self {
        let total = total(&buckets);
        let oldest = buckets.first().map_or(Instant::MAX, |bucket| bucket.starts_at);
        let newest = buckets.pop().unwrap_or(Counted::NONE);
        Self { lifetime, latest, total, oldest, newest, older: buckets }
    }

    /// Non-empty, oldest first.
    pub fn buckets(&self) -> impl DoubleEndedIterator<Item = &Counted> {
        self.older.iter().chain(self.newest())
    }

    pub fn bucket_count(&self) -> usize {
        self.older.len() + usize::from(self.newest().is_some())
    }

    /// What all buckets hold.
    pub fn total(&self) -> u64 {
        self.total
    }

    #[inline]
    pub(crate) fn newest(&self) -> Option<&Counted> {
        (self.newest.count > 0).then_some(&self.newest)
    }

    #[inline]
    pub(crate) fn leaves_at(&self, bucket: &Counted) -> Instant {
        bucket.starts_at.plus(self.lifetime)
    }

    /// How many buckets count no more at `now`, and what the others hold.
    #[inline]
    fn at(&self, now: Instant) -> (usize, u64) {
        if self.oldest.plus(self.lifetime) > now { (0, self.total) } else { self.left_at(now) }
    }

    fn left_at(&self, now: Instant) -> (usize, u64) {
        if self.leaves_at(&self.newest) <= now {
            return (self.bucket_count(), 0);
        }
        let gone = self.older.partition_point(|bucket| self.leaves_at(bucket) <= now);
        (gone, total(&self.older[gone..]).saturating_add(self.newest.count))
    }

    /// Lets go of the oldest buckets.
    fn drop_oldest(&mut self, count: usize) {
        if count > self.older.len() {
            self.newest = Counted::NONE;
        }
        self.older.drain(..count.min(self.older.len()));
        self.find_oldest();
    }

    fn find_oldest(&mut self) {
        let oldest = self.buckets().next().map(|bucket| bucket.starts_at);
        self.oldest = oldest.unwrap_or(Instant::MAX);
    }

    /// When everything counted has left; not before `latest`, which must not be forgotten.
    pub(crate) fn expires_at(&self) -> Instant {
        self.newest().map_or(self.latest, |bucket| self.leaves_at(bucket).max(self.latest))
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
    for bucket in sliding.buckets().skip(gone) {
        left = left.saturating_add(bucket.count);
        if left >= wanted {
            return sliding.leaves_at(bucket);
        }
    }
    unreachable!("a cost within max waits at most until the window is empty")
}

#[inline]
pub(crate) fn spend(
    sliding: &mut Sliding,
    resolution: Span,
    quota: &Quota,
    now: Instant,
    cost: Cost,
) -> Standing {
    let (gone, used) = sliding.at(now);
    if gone > 0 {
        sliding.drop_oldest(gone);
    }
    let cost = u64::from(cost.get());
    sliding.latest = now;
    sliding.total = used.saturating_add(cost);
    // Whatever counts in the newest bucket leaves with it, and so no sooner than it may.
    if sliding.newest().is_some_and(|newest| now < newest.starts_at.plus(resolution)) {
        sliding.newest.count = sliding.newest.count.saturating_add(cost);
    } else {
        begin_bucket(sliding, Counted { starts_at: now.floor_to(resolution), count: cost });
    }
    let resets_at = sliding.leaves_at(&sliding.newest).max(now);
    Standing { max: quota.max, used: sliding.total, resets_at }
}

fn begin_bucket(sliding: &mut Sliding, bucket: Counted) {
    match sliding.newest() {
        Some(newest) => sliding.older.push(*newest),
        None => sliding.oldest = bucket.starts_at,
    }
    sliding.newest = bucket;
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
    let place = sliding.older.binary_search_by_key(&starts_at, |bucket| bucket.starts_at);
    let bucket = match place {
        Ok(found) => &mut sliding.older[found],
        Err(_) if sliding.newest().is_some_and(|newest| newest.starts_at == starts_at) => {
            &mut sliding.newest
        }
        Err(_) => return Refund::Expired,
    };
    bucket.count = bucket.count.saturating_sub(u64::from(cost.get()));
    sliding.latest = now;
    if let Ok(found) = place
        && sliding.older[found].count == 0
    {
        sliding.older.remove(found);
    }
    if sliding.newest.count == 0 {
        sliding.newest = sliding.older.pop().unwrap_or(Counted::NONE);
    }
    sliding.find_oldest();
    sliding.total = total(&sliding.older).saturating_add(sliding.newest.count);
    Refund::Done
}
