//! `bucket` with a `burst` of its own: what is owed is kept in units, not in time.
//!
//! With the default burst the share that is full is what a changed `max` keeps, and one instant says
//! it ([`crate::bucket`]). A burst of its own stays what it is when the rate changes, so the units
//! owed must stay too: the state remembers them, and the `max` they were last spent by. Nothing is
//! converted when the rate changes, so nothing drifts however often it does.
//!
//! When the rate changed is not known, and a refusal, which would be the first to notice, writes
//! nothing. So the time since the last spend counts by the faster of the two rates: the one it was
//! spent by (by which the key may have been forgotten meanwhile) and the one in force now (so that a
//! raised limit is felt at once, and the wait that was told stays true).

use crate::bucket::Bucket;
use crate::decision::{Standing, Verdict};
use crate::limit::{Cost, Quota};
use crate::refund::Refund;
use crate::time::{Instant, Span};

/// Units in 2⁻⁶⁴, so that a whole number of them stays whole.
pub type FineUnits = u128;

const FRACTION_BITS: u32 = 64;

/// The state of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnitBucket {
    /// The last instant that changed this state.
    pub latest: Instant,
    /// Since when something has been owed without a pause: receipts from before are worth nothing.
    pub since: Instant,
    pub per: Span,
    /// The maximum of the last spend, at least 1.
    pub max: u64,
    /// At `latest`.
    pub owed: FineUnits,
    /// What was owed since `since` and has left, by time or by refunds.
    pub left: FineUnits,
}

/// So many units in so much time.
#[derive(Clone, Copy)]
struct Rate {
    max: u64,
    per: Span,
}

impl Rate {
    /// What leaves in this time, rounded down.
    fn units_in(self, micros: u64) -> FineUnits {
        let per = self.per.as_micros() as u128;
        let product = u128::from(micros) * u128::from(self.max);
        match u64::try_from(product / per) {
            Ok(whole) => {
                (u128::from(whole) << FRACTION_BITS) + ((product % per) << FRACTION_BITS) / per
            }
            Err(_) => FineUnits::MAX,
        }
    }

    /// What leaves in this fraction of a microsecond, in 2⁻³² of one, rounded down.
    fn units_in_fraction(self, fraction: u32) -> FineUnits {
        let product = u128::from(fraction) * u128::from(self.max);
        (product << 32) / self.per.as_micros() as u128
    }

    /// The first instant by which so much has left since `start`.
    fn gone_at(self, start: Instant, units: FineUnits) -> Instant {
        let per = self.per.as_micros() as u128;
        let (whole, fraction) = (units >> FRACTION_BITS, units & u128::from(u64::MAX));
        // Rounding up twice is rounding up once, where the first leaves whole numbers.
        let product = whole * per + (fraction * per).div_ceil(1 << FRACTION_BITS);
        let micros = product.div_ceil(u128::from(self.max));
        start.plus_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

/// A rate of nothing would never end what is owed; nothing fits then anyway.
fn at_least_one(max: u64) -> u64 {
    max.max(1)
}

fn fine(units: u64) -> FineUnits {
    FineUnits::from(units) << FRACTION_BITS
}

fn micros_between(earlier: Instant, later: Instant) -> u64 {
    let micros = i128::from(later.as_micros()) - i128::from(earlier.as_micros());
    u64::try_from(micros).unwrap_or(0)
}

impl UnitBucket {
    pub(crate) fn fresh(per: Span, now: Instant) -> Self {
        Self { latest: now, since: now, per, max: 1, owed: 0, left: 0 }
    }

    /// What was kept as an instant, as if it had been spent by the rate of `quota`. Rounded down, by
    /// far less than the instant was rounded up, so that it ends no later than the instant.
    pub(crate) fn of(bucket: &Bucket, per: Span, quota: &Quota) -> Self {
        let rate = Rate { max: at_least_one(quota.rate), per };
        let micros = micros_between(bucket.latest, Instant::from_micros(bucket.tat.micros));
        let is_past = bucket.tat.micros < bucket.latest.as_micros();
        let fraction = if is_past { 0 } else { bucket.tat.fraction };
        let owed = rate.units_in(micros).saturating_add(rate.units_in_fraction(fraction));
        let latest = bucket.latest;
        Self { latest, since: latest, per, max: rate.max, owed, left: 0 }
    }

    fn own_rate(&self) -> Rate {
        Rate { max: self.max, per: self.per }
    }

    fn rate_with(&self, quota: &Quota) -> Rate {
        Rate { max: self.max.max(quota.rate), per: self.per }
    }

    fn owed_at(&self, now: Instant, rate: Rate) -> FineUnits {
        self.owed.saturating_sub(rate.units_in(micros_between(self.latest, now)))
    }

    /// Whether a spend at `now` finds nothing owed.
    pub(crate) fn is_idle(&self, quota: &Quota, now: Instant) -> bool {
        self.owed_at(now, self.rate_with(quota)) == 0
    }

    fn pass_time(&mut self, now: Instant, rate: Rate) {
        let owed = self.owed_at(now, rate);
        self.left = self.left.saturating_add(self.owed - owed);
        self.owed = owed;
        self.latest = self.latest.max(now);
    }

    /// From here on the key is as if new, and no receipt for it is worth anything.
    pub(crate) fn expires_at(&self) -> Instant {
        self.own_rate().gone_at(self.latest, self.owed)
    }

    /// What has left and what is owed, after the latest spend: its end in the order of all spends.
    pub(crate) fn end(&self) -> FineUnits {
        self.left.saturating_add(self.owed)
    }
}

pub(crate) fn verdict(bucket: &UnitBucket, quota: &Quota, now: Instant, cost: Cost) -> Verdict {
    let Some(room) = quota.max.checked_sub(u64::from(cost.get())) else { return Verdict::Never };
    let (room, rate) = (fine(room), bucket.rate_with(quota));
    if bucket.owed_at(now, rate) <= room {
        return Verdict::Fits;
    }
    Verdict::At(rate.gone_at(bucket.latest, bucket.owed.saturating_sub(room)))
}

pub(crate) fn standing(bucket: &UnitBucket, quota: &Quota, now: Instant) -> Standing {
    let rate = bucket.rate_with(quota);
    let owed = bucket.owed_at(now, rate);
    let used = u64::try_from(owed.div_ceil(1 << FRACTION_BITS)).unwrap_or(u64::MAX);
    let resets_at = rate.gone_at(bucket.latest, bucket.owed).max(now);
    Standing { max: quota.max, used, resets_at }
}

pub(crate) fn spend(bucket: &mut UnitBucket, quota: &Quota, now: Instant, cost: Cost) -> Standing {
    bucket.pass_time(now, bucket.rate_with(quota));
    // Nothing owed: time has passed since, or each spend since was given back in full.
    if bucket.owed == 0 {
        (bucket.since, bucket.left) = (now, 0);
    }
    bucket.owed = bucket.owed.saturating_add(fine(cost.get().into()));
    bucket.max = at_least_one(quota.rate);
    standing(bucket, quota, now)
}

/// Spends leave in their order. Gives back no more than what of this one has not left yet: every
/// refund counts as if it had been of the oldest.
pub(crate) fn refund(
    bucket: &mut UnitBucket,
    since: Instant,
    end: FineUnits,
    cost: Cost,
    now: Instant,
) -> Refund {
    let mut after = *bucket;
    after.pass_time(now, bucket.own_rate());
    let not_left = if since == after.since { end.saturating_sub(after.left) } else { 0 };
    let give = fine(cost.get().into()).min(not_left).min(after.owed);
    if give == 0 {
        return Refund::Expired;
    }
    after.owed -= give;
    after.left = after.left.saturating_add(give);
    *bucket = after;
    Refund::Done
}
