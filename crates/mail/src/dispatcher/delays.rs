//! Delays that grow and never coincide.

use std::time::Duration;

use tollgate::Instant;

/// The instant a while from another one.
pub(crate) fn after(at: Instant, delay: Duration) -> Instant {
    at.plus_micros(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX))
}

/// What to wait after so many failures in a row (at least one): `base`, doubled with each, at
/// most `longest`, and up to a fifth more or less, so that what failed together does not come
/// back together.
pub(crate) fn growing(base: Duration, longest: Duration, failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(31);
    let delay = base.saturating_mul(1 << doublings).min(longest);
    let fifth = delay / 5;
    let spread_micros = u64::try_from(fifth.as_micros() * 2).unwrap_or(u64::MAX);
    // Without randomness the delay is merely exact.
    let random = getrandom::u64().unwrap_or(spread_micros / 2);
    (delay - fifth) + Duration::from_micros(random % spread_micros.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::growing;

    #[test]
    fn delays_double_up_to_the_longest_within_a_fifth() {
        let (base, longest) = (Duration::from_secs(60), Duration::from_secs(3600));
        for (failures, middle) in [(1, 60), (2, 120), (3, 240), (6, 1920), (7, 3600), (99, 3600)] {
            for _ in 0..100 {
                let delay = growing(base, longest, failures);
                let middle = Duration::from_secs(middle);
                assert!(delay >= middle * 4 / 5 && delay <= middle * 6 / 5, "{delay:?}");
            }
        }
    }
}
