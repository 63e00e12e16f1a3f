//! Whether a claim's instance is dead: by the database's clock and by ours.
//!
//! A lease ends by the database's clock, which may be set ahead while its instance is well and
//! sending. So a claim of another instance is taken over only when it was seen, unchanged, for the
//! whole length of its lease on our own steady clock too: no attempt takes so long. Whoever watched
//! from the beginning need not wait longer than the lease; whoever starts later waits one lease more
//! at the most.

use std::collections::HashMap;

use tokio::time::Instant as Steady;
use tollgate::Instant;

use crate::queue::OpenClaim;

/// Claims that were there at the last look, and since when we know them.
#[derive(Debug, Default)]
pub(super) struct ClaimWatch {
    seen_at: HashMap<OpenClaim, Steady>,
}

impl ClaimWatch {
    /// Notes which claims there are, and says which of them may be taken over. One that is not
    /// among them any more, or not as it was, is forgotten.
    pub(super) fn ended(
        &mut self,
        open: Vec<OpenClaim>,
        instance: &str,
        now: Instant,
        steady: Steady,
    ) -> Vec<OpenClaim> {
        let before = std::mem::take(&mut self.seen_at);
        let since = |claim: &OpenClaim| before.get(claim).copied().unwrap_or(steady);
        for claim in open {
            let seen_at = since(&claim);
            self.seen_at.insert(claim, seen_at);
        }
        let is_over = |claim: &OpenClaim, seen_at: Steady| {
            claim.until <= now
                && (claim.instance == instance || steady.duration_since(seen_at) >= claim.length())
        };
        let over = self.seen_at.iter().filter(|(claim, seen_at)| is_over(claim, **seen_at));
        over.map(|(claim, _)| claim.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate::Span;

    use super::*;

    const NOW: Instant = Instant::from_secs(1_772_714_096);

    /// A lease of 300 s.
    fn claim(instance: &str, claimed_at: Instant) -> OpenClaim {
        let until = claimed_at.plus(Span::from_secs(300));
        OpenClaim { seq: 7, instance: instance.into(), claimed_at, until }
    }

    fn at(secs: i64) -> Instant {
        NOW.plus(Span::from_secs(secs))
    }

    #[test]
    fn a_clock_set_ahead_ends_no_claim_of_another_instance() {
        let (mut watch, steady) = (ClaimWatch::default(), Steady::now());
        let theirs = claim("another", NOW);
        let mut look = |now, secs| {
            let steady = steady + Duration::from_secs(secs);
            watch.ended(vec![theirs.clone()], "me", now, steady)
        };
        assert_eq!(look(at(1), 0), []);
        for secs in [25, 299] {
            assert_eq!(look(at(625), secs), [], "{secs} s");
        }
        assert_eq!(look(at(299), 300), [], "the clock was set back: its lease has not ended");
        assert_eq!(look(at(925), 300), std::slice::from_ref(&theirs));
    }

    #[test]
    fn a_claim_that_changed_is_watched_anew() {
        let (mut watch, begun) = (ClaimWatch::default(), Steady::now());
        let after = |secs| begun + Duration::from_secs(secs);
        let (first, second) = (claim("another", NOW), claim("another", at(200)));
        assert_eq!(watch.ended(vec![first.clone()], "me", at(900), begun), []);
        assert_eq!(watch.ended(vec![second.clone()], "me", at(900), after(200)), []);
        assert_eq!(watch.ended(vec![second.clone()], "me", at(900), after(499)), []);
        assert_eq!(watch.ended(vec![], "me", at(900), after(500)), []);
        assert_eq!(watch.ended(vec![second], "me", at(900), after(501)), [], "it was away");
        assert_eq!(watch.ended(vec![first], "me", at(900), after(502)), [], "long forgotten");
    }

    #[test]
    fn our_own_claim_and_one_that_was_ended_need_no_watch() {
        let (mut watch, steady) = (ClaimWatch::default(), Steady::now());
        let mine = claim("me", NOW);
        assert_eq!(watch.ended(vec![mine.clone()], "me", at(299), steady), []);
        assert_eq!(watch.ended(vec![mine.clone()], "me", at(300), steady), [mine]);
        let ended = OpenClaim { until: Instant::from_micros(0), ..claim("another", NOW) };
        assert_eq!(watch.ended(vec![ended.clone()], "me", at(1), steady), [ended]);
    }
}
