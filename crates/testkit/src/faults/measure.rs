//! What callers saw in a stretch of time, in numbers; and when it was as before again.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::load::{Record, Trouble};

/// Recovery is looked for in slices of this length.
const SLICE: Duration = Duration::from_millis(250);
/// Fewer in a slice say nothing about its slowest.
const SLICE_REQUESTS: usize = 20;
/// Above what was usual by this factor or this much, it is not as before. Two noisy cores do less.
const USUAL_TIMES: u32 = 3;
const USUAL_PLUS: Duration = Duration::from_millis(20);

/// The requests that were asked in one stretch of time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Measured {
    pub(super) requests: usize,
    /// Of those with an answer of whatever status.
    pub(super) p50: Duration,
    pub(super) p99: Duration,
    pub(super) max: Duration,
    pub(super) troubles: BTreeMap<Trouble, u64>,
}

impl Measured {
    pub(super) fn of<'a>(records: impl Iterator<Item = &'a Record>) -> Self {
        let (mut measured, mut waits) = (Self::default(), Vec::new());
        for record in records {
            measured.requests += 1;
            if let Some(trouble) = record.trouble() {
                *measured.troubles.entry(trouble).or_default() += 1;
            }
            match record.trouble() {
                Some(Trouble::Refused | Trouble::Broken | Trouble::Silence) => {}
                Some(Trouble::Status(_) | Trouble::Misdelivered) | None => waits.push(record.took),
            }
        }
        waits.sort_unstable();
        let at = |percent: usize| {
            waits.get((waits.len() * percent).div_ceil(100).saturating_sub(1)).copied()
        };
        measured.p50 = at(50).unwrap_or_default();
        measured.p99 = at(99).unwrap_or_default();
        measured.max = waits.last().copied().unwrap_or_default();
        measured
    }

    /// Asked in that stretch.
    pub(super) fn between(records: &[Record], from: Duration, to: Duration) -> Self {
        Self::of(records.iter().filter(|record| (from..to).contains(&record.asked_at)))
    }

    /// Asked before its end and answered, or given up, after its beginning; and all others.
    pub(super) fn split(records: &[Record], from: Duration, to: Duration) -> (Self, Self) {
        let (during, outside): (Vec<&Record>, Vec<&Record>) =
            records.iter().partition(|record| record.asked_at < to && record.answered_at() >= from);
        (Self::of(during.into_iter()), Self::of(outside.into_iter()))
    }

    pub(super) fn troubles_in_words(&self) -> String {
        if self.troubles.is_empty() {
            return "none".into();
        }
        let words = self.troubles.iter().map(|(trouble, count)| format!("{count} × {trouble}"));
        words.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn waits_in_words(&self) -> String {
        [self.p50, self.p99, self.max].map(millis).join(" / ")
    }
}

/// From the end of a fault on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Recovery {
    /// To the first good answer to a question asked after the end.
    pub(super) first_good: Option<Duration>,
    /// To the first slice of time without any error whose slowest hundredth is as before.
    pub(super) as_before: Option<Duration>,
}

impl Recovery {
    pub(super) fn of(records: &[Record], ended: Duration, usual: &Measured) -> Self {
        let after = || records.iter().filter(|record| record.asked_at >= ended);
        let good = after().filter(|record| record.trouble().is_none()).map(Record::answered_at);
        let last = records.last().map_or(ended, |record| record.asked_at);
        let limit = (usual.p99 * USUAL_TIMES).max(usual.p99 + USUAL_PLUS);
        let slices = (0..).map(|slice| SLICE * slice).take_while(|from| ended + *from < last);
        let as_before = slices.into_iter().find(|from| {
            let slice = Measured::between(records, ended + *from, ended + *from + SLICE);
            slice.requests >= SLICE_REQUESTS && slice.troubles.is_empty() && slice.p99 <= limit
        });
        let first_good = good.min().map(|at| at.saturating_sub(ended));
        // Asked in that slice is answered later.
        Self { first_good, as_before: as_before.max(first_good.filter(|_| as_before.is_some())) }
    }
}

/// `0.8`, `12`, `5012`: milliseconds, to the tenth where that says something.
pub(super) fn millis(duration: Duration) -> String {
    let micros = duration.as_micros();
    match micros {
        0..10_000 => format!("{}.{}", micros / 1000, micros % 1000 / 100),
        _ => format!("{}", (micros + 500) / 1000),
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("nobody listens"),
            Self::Broken => f.write_str("connection broke"),
            Self::Silence => f.write_str("no answer in 10 s"),
            Self::Status(status) => write!(f, "{status}"),
            Self::Misdelivered => f.write_str("somebody else's answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::load::What;

    fn record(asked_ms: u64, took_ms: u64, trouble: Option<Trouble>) -> Record {
        let what = trouble.map_or(What::Answered, What::Failed);
        let [asked_at, took] = [asked_ms, took_ms].map(Duration::from_millis);
        Record { asked_at, took, user: None, what }
    }

    #[test]
    fn percentiles_are_those_of_the_answers() {
        let mut records: Vec<_> = (1..=200).map(|took| record(0, took, None)).collect();
        records.push(record(0, 9_000, Some(Trouble::Broken)));
        let measured = Measured::of(records.iter());
        assert_eq!(measured.requests, 201);
        assert_eq!(measured.waits_in_words(), "100 / 198 / 200");
        assert_eq!(measured.troubles_in_words(), "1 × connection broke");
        assert_eq!(Measured::default().waits_in_words(), "0.0 / 0.0 / 0.0");
    }

    #[test]
    fn it_is_as_before_once_a_slice_has_no_errors_and_no_long_waits() {
        let down = Some(Trouble::Status(503));
        let mut records = Vec::new();
        for at in 0..100 {
            records.push(record(at * 10, 1, None));
            records.push(record(1_000 + at * 10, 1, down));
            // Good from 1.5 s after the end, slow until 2 s after it.
            let took = if at < 50 { 400 } else { 1 };
            records.push(record(2_500 + at * 10, took, None));
        }
        records.sort_by_key(|record| record.asked_at);
        let usual = Measured::between(&records, Duration::ZERO, Duration::from_secs(1));
        let recovery = Recovery::of(&records, Duration::from_secs(1), &usual);
        assert_eq!(recovery.first_good, Some(Duration::from_millis(1_900)));
        assert_eq!(recovery.as_before, Some(Duration::from_millis(2_000)));
        let never = Recovery::of(&records[..200], Duration::from_secs(1), &usual);
        assert_eq!(never, Recovery { first_good: None, as_before: None });
    }
}
