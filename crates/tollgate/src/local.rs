//! Counts of this instance while the store cannot answer, for policies that say `local`.
//!
//! A database is rarely away as a whole: one connection may be down while others answer, and
//! refusals are repeated from memory. There one answer ends nothing: the counts are dropped by the
//! first answer that follows a while without any error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::time::Instant as Stopwatch;
use tollgate_core::Decision;
use tollgate_core::store::{Ask, Clock};
use tollgate_store_embedded::Embedded;

use crate::answer::Degraded;
use crate::error::Error;
use crate::seldom::Seldom;

#[derive(Debug)]
pub(crate) struct Local {
    counts: ArcSwapOption<Embedded>,
    /// When the store last failed, in milliseconds of `since`; 0 if it did not since all was well.
    failed_ms: AtomicU64,
    since: Stopwatch,
    /// How long there must be no error before the store is taken to be back.
    quiet: Duration,
    warned: Seldom,
}

impl Local {
    pub(crate) fn new(quiet: Duration) -> Self {
        let (counts, failed_ms) = (ArcSwapOption::empty(), AtomicU64::new(0));
        Self { counts, failed_ms, since: Stopwatch::now(), quiet, warned: Seldom::default() }
    }

    pub(crate) fn check(&self, ask: &Ask<'_>, clock: &Arc<dyn Clock>) -> Result<Decision, Error> {
        let counts = match self.counts.load_full() {
            Some(counts) => counts,
            None => {
                let made = Arc::new(Embedded::memory(clock.clone())?);
                // Two callers may both make one: the first in its place wins.
                let before = self.counts.compare_and_swap(&None::<Arc<_>>, Some(made.clone()));
                Arc::clone(before.as_ref().unwrap_or(&made))
            }
        };
        let mut decision = Decision::blank();
        counts.check_blocking(ask, &mut decision)?;
        Ok(decision)
    }

    /// Says that a decision was made without the store.
    pub(crate) fn warn(&self, policy: &str, degraded: Degraded, error: &Error) {
        if let Some(left_out) = self.warned.due() {
            tracing::warn!(%error, policy, ?degraded, left_out, "decided without the store");
        }
    }

    pub(crate) fn store_failed(&self) {
        self.failed_ms.fetch_max(self.now_ms(), Relaxed);
    }

    /// The store itself answered. While all is well this is one load.
    #[inline]
    pub(crate) fn store_answered(&self) {
        let failed_ms = self.failed_ms.load(Relaxed);
        if failed_ms != 0 {
            self.drop_if_quiet(failed_ms);
        }
    }

    #[cold]
    fn drop_if_quiet(&self, failed_ms: u64) {
        let quiet_ms = u128::from(self.now_ms().saturating_sub(failed_ms));
        let is_quiet = quiet_ms >= self.quiet.as_millis();
        // An error that comes in between keeps the counts.
        if is_quiet && self.failed_ms.compare_exchange(failed_ms, 0, Relaxed, Relaxed).is_ok() {
            self.counts.store(None);
        }
    }

    /// Never 0.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Cost, Instant, Intent};
    use tollgate_store_embedded::SystemClock;

    use super::*;
    use crate::compiled::Compiled;
    use crate::policy::Policy;

    const QUIET: Duration = Duration::from_secs(10);

    fn used_after_one_more(local: &Local) -> u64 {
        let limits = r#"limits = [{ name = "user", max = 9, per = "1d", by = ["user"] }]"#;
        let policy = Policy::from_toml("p", limits).expect("valid");
        let policy = Compiled::new(policy, 0, Instant::MIN, None);
        let claims = [policy.plain_claim(&[("user", "ada")]).expect("one limit by one attribute")];
        let ask = policy.ask(Intent::Spend, Cost::new(1).expect("not 0"), &claims);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        local.store_failed();
        local.check(&ask, &clock).expect("memory answers").limits[0].standing.used
    }

    #[tokio::test(start_paused = true)]
    async fn counts_outlive_answers_until_there_was_no_error_for_a_while() {
        let local = Local::new(QUIET);
        for used in 1..=3 {
            assert_eq!(used_after_one_more(&local), used);
            local.store_answered();
            tokio::time::advance(QUIET - Duration::from_millis(1)).await;
            local.store_answered();
        }
        tokio::time::advance(2 * QUIET).await;
        assert_eq!(
            used_after_one_more(&local),
            4,
            "nobody asked the store, so it may be away still"
        );
        tokio::time::advance(QUIET).await;
        local.store_answered();
        assert!(local.counts.load().is_none());
        assert_eq!(used_after_one_more(&local), 1);
    }
}
