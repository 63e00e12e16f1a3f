//! `bucket`: the generic cell rate algorithm, one instant per key. One with a `burst` of its own is
//! counted in units instead: [`crate::unit_bucket`].
//!
//! The stored instant (the theoretical arrival time, `tat`) is when the bucket is full again. A
//! unit costs `per / max` of time, kept to 2⁻³² µs and rounded up, so the long-run rate is never
//! above `max / per`, and for a million units a second less than a billionth below it.

use crate::decision::{Standing, Verdict};
use crate::limit::{Cost, Quota};
use crate::refund::Refund;
use crate::time::{Instant, Span};

const FRACTION_BITS: u32 = 32;
/// A bucket is full again after this at most: a hundred thousand years of 366 days.
const MAX_REFILL: Span = Span::from_secs(36_600_000 * 86_400);

/// An instant to 2⁻³² µs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FineInstant {
    pub micros: i64,
    pub fraction: u32,
}

/// A length of time in units of 2⁻³² µs.
pub type FineSpan = u128;

/// The time one unit costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Emission {
    unit: FineSpan,
    /// The same where a word holds it: up to 71 minutes.
    word: Option<Divisor>,
}

impl Emission {
    /// For rules that do not count by it.
    pub(crate) const NONE: Self = Self { unit: 0, word: None };

    pub(crate) fn of(per: Span, max: u64) -> Self {
        let per = (per.as_micros() as u128) << FRACTION_BITS;
        // Nothing is emitted when max is 0; `Quota::max` is 0 then too, so nothing fits.
        let unit = if max == 0 { per } else { per.div_ceil(u128::from(max)) };
        Self { unit, word: u64::try_from(unit).ok().and_then(Divisor::new) }
    }

    #[inline]
    pub(crate) fn times(self, units: u64) -> FineSpan {
        // Up to 71 minutes one machine instruction is enough.
        let short = self.word.and_then(|word| word.divisor.checked_mul(units));
        short.map_or_else(|| self.unit.saturating_mul(u128::from(units)), u128::from)
    }

    /// Units that make up `span`, rounded up.
    #[inline]
    fn units_in(self, span: FineSpan) -> u64 {
        match (u64::try_from(span), self.word) {
            (Ok(span), Some(word)) => word.div_ceil(span),
            _ => u64::try_from(span.div_ceil(self.unit.max(1))).unwrap_or(u64::MAX),
        }
    }

    /// The largest burst that is full again within [`MAX_REFILL`]: beyond, time runs out of range.
    pub(crate) fn max_burst(self) -> u64 {
        let units = ((MAX_REFILL.as_micros() as u128) << FRACTION_BITS) / self.unit.max(1);
        u64::try_from(units).unwrap_or(u64::MAX)
    }
}

/// Divides by the same number again and again by multiplying: of all that a check does, a division
/// would take longest on many processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Divisor {
    divisor: u64,
    /// 2⁶⁴ / `divisor`, not rounded up.
    reciprocal: u64,
}

impl Divisor {
    fn new(divisor: u64) -> Option<Self> {
        Some(Self { divisor, reciprocal: u64::MAX.checked_div(divisor)? })
    }

    #[inline]
    fn div_ceil(self, dividend: u64) -> u64 {
        // The quotient rounded down, or one less.
        let product = u128::from(dividend) * u128::from(self.reciprocal);
        let quotient = (product >> 64) as u64;
        let rest = dividend - quotient * self.divisor;
        quotient + u64::from(rest > 0) + u64::from(rest > self.divisor)
    }
}

impl FineInstant {
    #[inline]
    pub fn from_instant(at: Instant) -> Self {
        Self { micros: at.as_micros(), fraction: 0 }
    }

    #[inline]
    fn fine(self) -> i128 {
        (i128::from(self.micros) << FRACTION_BITS) | i128::from(self.fraction)
    }

    /// Saturates at the ends of `Instant`.
    #[inline]
    fn from_fine(fine: i128) -> Self {
        match i64::try_from(fine >> FRACTION_BITS) {
            Ok(micros) => Self { micros, fraction: fine as u32 },
            Err(_) if fine < 0 => Self { micros: i64::MIN, fraction: 0 },
            Err(_) => Self { micros: i64::MAX, fraction: u32::MAX },
        }
    }

    #[inline]
    pub fn plus(self, span: FineSpan) -> Self {
        // Up to 71 minutes machine words are enough.
        let short = u64::try_from(span).ok().and_then(|span| {
            let fraction = u64::from(self.fraction).checked_add(span)?;
            let micros = self.micros.checked_add((fraction >> FRACTION_BITS) as i64)?;
            Some(Self { micros, fraction: fraction as u32 })
        });
        short.unwrap_or_else(|| self.plus_long(span))
    }

    fn plus_long(self, span: FineSpan) -> Self {
        Self::from_fine(self.fine().saturating_add(i128::try_from(span).unwrap_or(i128::MAX)))
    }

    #[inline]
    fn minus(self, span: FineSpan) -> Self {
        Self::from_fine(self.fine().saturating_sub(i128::try_from(span).unwrap_or(i128::MAX)))
    }

    /// Zero when `earlier` is not earlier.
    #[inline]
    pub fn since(self, earlier: Instant) -> FineSpan {
        let micros = i128::from(self.micros) - i128::from(earlier.as_micros());
        u128::try_from(micros)
            .map_or(0, |micros| (micros << FRACTION_BITS) | u128::from(self.fraction))
    }

    /// The first whole microsecond not before `self`.
    #[inline]
    pub fn ceil(self) -> Instant {
        Instant::from_micros(self.micros).plus_micros(i64::from(self.fraction > 0))
    }
}

/// The state of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    pub tat: FineInstant,
    /// The last instant that changed this state: a refund by an earlier clock would give back what
    /// time has given back already.
    pub latest: Instant,
    /// The time given back since the key was last idle.
    pub refunded: FineSpan,
}

/// A bucket without refunds in 20 bytes, so that a key's state takes 24. The short one is the first, so
/// that the others stand where words do: none crosses a cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, packed(4))]
pub struct PackedBucket {
    tat_fraction: u32,
    tat_micros: i64,
    latest: Instant,
}

impl PackedBucket {
    /// `None` if it holds a refund, which has no room here.
    #[inline]
    pub(crate) fn pack(bucket: Bucket) -> Option<Self> {
        let FineInstant { micros: tat_micros, fraction: tat_fraction } = bucket.tat;
        (bucket.refunded == 0).then_some(Self { tat_micros, latest: bucket.latest, tat_fraction })
    }

    #[inline]
    pub(crate) fn unpack(self) -> Bucket {
        let tat = FineInstant { micros: self.tat_micros, fraction: self.tat_fraction };
        Bucket { tat, latest: self.latest, refunded: 0 }
    }

    #[inline]
    pub(crate) fn latest(self) -> Instant {
        self.latest
    }

    /// [`verdict`] and [`spend`] in one, with machine words: what nearly every check is. `None`
    /// where the cost does not fit, or where refilling takes longer than the 71 minutes that a
    /// word holds; then nothing has changed.
    #[inline]
    pub(crate) fn try_spend(
        &mut self,
        quota: &Quota,
        now: Instant,
        cost: Cost,
    ) -> Option<Standing> {
        let word = quota.emission.word?;
        let unit = word.divisor;
        let capacity = unit.checked_mul(quota.max)?;
        let spent = unit.checked_mul(u64::from(cost.get()))?;
        let start = now.as_micros();
        let ahead = self.tat_micros.saturating_sub(start);
        let owed = if ahead < 0 {
            0
        } else {
            u64::from(u32::try_from(ahead).ok()?) << FRACTION_BITS | u64::from(self.tat_fraction)
        };
        let owed = owed.checked_add(spent).filter(|owed| *owed <= capacity)?;
        let tat_micros = start.checked_add((owed >> FRACTION_BITS) as i64)?;
        let tat_fraction = owed as u32;
        *self = Self { tat_micros, latest: now, tat_fraction };
        let resets_at = FineInstant { micros: tat_micros, fraction: tat_fraction }.ceil();
        Some(Standing { max: quota.max, used: word.div_ceil(owed), resets_at })
    }
}

impl Bucket {
    pub(crate) fn fresh(now: Instant) -> Self {
        Self { tat: FineInstant::from_instant(now), latest: now, refunded: 0 }
    }

    /// From here on the key is as if new, and no receipt for it is worth anything: every receipt's
    /// `tat` was at most today's plus what was given back since.
    pub(crate) fn expires_at(&self) -> Instant {
        self.tat.plus(self.refunded).ceil().max(self.latest)
    }
}

#[inline]
pub(crate) fn verdict(state: Option<Bucket>, quota: &Quota, now: Instant, cost: Cost) -> Verdict {
    let cost = u64::from(cost.get());
    if cost > quota.max {
        return Verdict::Never;
    }
    let at = FineInstant::from_instant(now);
    let tat = state.map_or(at, |bucket| bucket.tat.max(at));
    // What may stand against the key before this cost is added.
    let room = quota.emission.times(quota.max - cost);
    if tat.since(now) <= room { Verdict::Fits } else { Verdict::At(tat.minus(room).ceil()) }
}

#[inline]
pub(crate) fn standing(state: Option<Bucket>, quota: &Quota, now: Instant) -> Standing {
    let at = FineInstant::from_instant(now);
    let tat = state.map_or(at, |bucket| bucket.tat.max(at));
    Standing {
        max: quota.max,
        used: quota.emission.units_in(tat.since(now)),
        resets_at: tat.ceil(),
    }
}

#[inline]
pub(crate) fn spend(bucket: &mut Bucket, quota: &Quota, now: Instant, cost: Cost) -> Standing {
    // Without refunds, one that has expired is as good as new anyway.
    if bucket.refunded > 0 && bucket.expires_at() <= now {
        *bucket = Bucket::fresh(now);
    }
    let spent = quota.emission.times(u64::from(cost.get()));
    bucket.tat = bucket.tat.max(FineInstant::from_instant(now)).plus(spent);
    bucket.latest = now;
    let used = quota.emission.units_in(bucket.tat.since(now));
    Standing { max: quota.max, used, resets_at: bucket.tat.ceil() }
}

/// Gives back no more than what of this spend still weighs on the key: not what time has already
/// given back, nor what other refunds have.
pub(crate) fn refund(
    bucket: &mut Bucket,
    tat_after: FineInstant,
    spent: FineSpan,
    refunded_before: FineSpan,
    now: Instant,
) -> Refund {
    let now = now.max(bucket.latest);
    let refunds_since = bucket.refunded.saturating_sub(refunded_before);
    let still_owed = tat_after.since(now).saturating_sub(refunds_since);
    let give = spent.min(still_owed).min(bucket.tat.since(now));
    if give == 0 {
        return Refund::Expired;
    }
    bucket.latest = now;
    bucket.tat = bucket.tat.minus(give);
    bucket.refunded = bucket.refunded.saturating_add(give);
    Refund::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplying_divides() {
        let near = |number: u64| [number.saturating_sub(1), number, number.saturating_add(1)];
        let mut numbers: Vec<u64> = (0..64).flat_map(|bit| near(1 << bit)).collect();
        numbers.extend([u64::MAX, 3, 7, 60, 1_000_003, 257_698_038, 15_461_882_265_600]);
        for &divisor in numbers.iter().filter(|number| **number > 0) {
            let word = Divisor::new(divisor).unwrap();
            let multiples = numbers.iter().flat_map(|times| near(divisor.saturating_mul(*times)));
            for dividend in numbers.iter().copied().chain(multiples) {
                let quotient = dividend.div_ceil(divisor);
                assert_eq!(word.div_ceil(dividend), quotient, "{dividend} / {divisor}");
            }
        }
        assert_eq!(Divisor::new(0), None);
    }
}
