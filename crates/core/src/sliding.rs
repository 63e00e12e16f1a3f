//! `sliding`: sparse counts in small buckets; at most `max` in any interval of the window's length.
//!
//! A bucket counts until its last microsecond is `per` old, so no unit ever leaves early. With the
//! default resolution a key holds at most 61 buckets, and never more than it holds units.

use crate::decision::{Standing, Verdict};
use crate::limit::{Cost, Quota};
use crate::refund::Refund;
use crate::state::Spend;
use crate::time::{Instant, Span};

/// The state of one key: non-empty buckets, oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sliding {
    /// From a bucket's start until it leaves: `resolution − 1 + per`.
    pub lifetime: Span,
    /// The last instant that changed this state. Buckets were dropped by it, so none may be
    /// counted by an earlier clock.
    pub latest: Instant,
    pub buckets: Vec<Counted>,
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
        Self { lifetime, latest: Instant::MIN, buckets: Vec::new() }
    }

    fn leaves_at(&self, bucket: &Counted) -> Instant {
        bucket.starts_at.plus(self.lifetime)
    }

    /// The buckets that still count at `now`.
    fn live(&self, now: Instant) -> &[Counted] {
        let gone = self.buckets.partition_point(|bucket| self.leaves_at(bucket) <= now);
        &self.buckets[gone..]
    }

    /// When everything counted has left; not before `latest`, which must not be forgotten.
    pub(crate) fn expires_at(&self) -> Instant {
        self.buckets.last().map_or(self.latest, |bucket| self.leaves_at(bucket).max(self.latest))
    }

    fn standing(&self, quota: Quota, now: Instant, used: u64, verdict: Verdict) -> Standing {
        Standing {
            max: quota.max,
            used,
            remaining: quota.max.saturating_sub(used),
            resets_at: self.expires_at().max(now),
            verdict,
        }
    }
}

fn total(buckets: &[Counted]) -> u64 {
    buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.count))
}

pub(crate) fn stand(state: Option<&Sliding>, quota: Quota, now: Instant, cost: Cost) -> Standing {
    let cost = u64::from(cost.get());
    let Some(sliding) = state else {
        let verdict = if cost > quota.max { Verdict::Never } else { Verdict::Fits };
        return Standing { max: quota.max, used: 0, remaining: quota.max, resets_at: now, verdict };
    };
    let live = sliding.live(now);
    let used = total(live);
    let verdict = if cost > quota.max {
        Verdict::Never
    } else if used.saturating_add(cost) <= quota.max {
        Verdict::Fits
    } else {
        Verdict::At(when_left(sliding, live, used.saturating_add(cost) - quota.max))
    };
    sliding.standing(quota, now, used, verdict)
}

/// When `wanted` of the live units have left. There are that many: the cost alone fits.
fn when_left(sliding: &Sliding, live: &[Counted], wanted: u64) -> Instant {
    let mut left: u64 = 0;
    for bucket in live {
        left = left.saturating_add(bucket.count);
        if left >= wanted {
            return sliding.leaves_at(bucket);
        }
    }
    unreachable!("a cost within max waits at most until the window is empty")
}

pub(crate) fn spend(
    sliding: &mut Sliding,
    resolution: Span,
    quota: Quota,
    now: Instant,
    cost: Cost,
) -> (Standing, Spend) {
    let gone = sliding.buckets.len() - sliding.live(now).len();
    sliding.buckets.drain(..gone);
    sliding.latest = now;
    let starts_at = now.floor_to(resolution);
    let cost = u64::from(cost.get());
    match sliding.buckets.last_mut() {
        Some(last) if last.starts_at >= starts_at => last.count = last.count.saturating_add(cost),
        _ => sliding.buckets.push(Counted { starts_at, count: cost }),
    }
    let used = total(&sliding.buckets);
    let standing = sliding.standing(quota, now, used, Verdict::Fits);
    let last = sliding.buckets.last().expect("just spent").starts_at;
    (standing, Spend::Sliding { starts_at: last, leaves_at: last.plus(sliding.lifetime) })
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
            Refund::Done
        }
        Err(_) => Refund::Expired,
    }
}
