//! Refusals in slices of time, for as long as they matter.
//!
//! **Bounds.** A slice keeps so many subjects of each limit, and all slices together at most
//! [`MAX_SUBJECTS`]: beyond that the older slices keep half as many, and half again. What is
//! forgotten so is in the slice's error.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use tollgate_core::{Instant, Span};

use crate::offenders::sketch::{Sketch, Tally};

/// In all slices of one history.
pub(crate) const MAX_SUBJECTS: usize = 100_000;
/// Limits with refusals in one slice; the rest go unrecorded.
const MAX_SERIES: usize = 1_000;

/// What is counted together: the subjects of one limit, or the checks of one policy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Series {
    pub(crate) policy: Arc<str>,
    /// Empty for the policy as a whole.
    pub(crate) limit: Arc<str>,
}

type Sketches = HashMap<Series, Sketch<Arc<str>>, foldhash::fast::RandomState>;

/// Refusals by series and subject.
pub(crate) type Refusals = Sketches;

#[derive(Debug)]
pub(crate) struct History {
    grain: Span,
    kept: Span,
    /// Of one series in one slice.
    capacity: usize,
    /// By the instants at which they begin.
    slices: BTreeMap<Instant, Sketches>,
}

/// One subject over some time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Total {
    pub(crate) series: Series,
    pub(crate) subject: Arc<str>,
    pub(crate) tally: Tally,
    pub(crate) missed: u64,
}

impl History {
    pub(crate) fn new(grain: Span, kept: Span, capacity: usize) -> Self {
        Self { grain, kept, capacity, slices: BTreeMap::new() }
    }

    /// Adds what was refused of late, each subject in the slice of its last refusal. Returns how many
    /// refusals found no room.
    pub(crate) fn add(&mut self, refusals: &Refusals, now: Instant) -> u64 {
        let oldest = now.minus(self.kept).minus(self.grain);
        self.slices.retain(|starts_at, _| *starts_at >= oldest);
        let mut lost = 0;
        for (series, sketch) in refusals {
            if sketch.missed() > 0 {
                match self.sketch(now, series) {
                    Some(kept) => kept.miss(sketch.missed()),
                    None => lost += sketch.missed(),
                }
            }
            for (subject, tally) in sketch.iter() {
                match self.sketch(tally.last_seen, series) {
                    Some(kept) => kept.add(subject.clone(), *tally),
                    None => lost += tally.refused,
                }
            }
        }
        self.enforce_bounds();
        lost
    }

    fn sketch(&mut self, at: Instant, series: &Series) -> Option<&mut Sketch<Arc<str>>> {
        let slice = self.slices.entry(at.floor_to(self.grain)).or_default();
        if !slice.contains_key(series) {
            if slice.len() >= MAX_SERIES {
                return None;
            }
            slice.insert(series.clone(), Sketch::new(self.capacity));
        }
        slice.get_mut(series)
    }

    /// How many subjects are remembered, the same one in two slices as two.
    pub(crate) fn len(&self) -> usize {
        self.slices.values().flat_map(|slice| slice.values()).map(Sketch::len).sum()
    }

    fn enforce_bounds(&mut self) {
        let mut capacity = self.capacity;
        while self.len() > MAX_SUBJECTS && capacity > 1 {
            capacity /= 2;
            // Oldest first, and no more than is needed; the newest slice last of all.
            let starts: Vec<Instant> = self.slices.keys().copied().collect();
            for starts_at in starts {
                for sketch in
                    self.slices.get_mut(&starts_at).into_iter().flat_map(|s| s.values_mut())
                {
                    sketch.shrink(capacity);
                }
                if self.len() <= MAX_SUBJECTS {
                    break;
                }
            }
        }
    }

    /// Where the slice begins that `from` lies in.
    pub(crate) fn starts_at(&self, from: Instant) -> Instant {
        from.floor_to(self.grain)
    }

    /// Slices from the one that `from` lies in to the one of `now`. A clock that was ahead for a
    /// moment may have left some that are still to come.
    fn slices(&self, from: Instant, now: Instant) -> impl Iterator<Item = &Sketches> {
        let starts = (Bound::Included(self.starts_at(from)), Bound::Included(now));
        // Of a range that ends before it begins there is none.
        let slices = (from <= now).then(|| self.slices.range(starts));
        slices.into_iter().flatten().map(|(_, slice)| slice)
    }

    /// Who was refused most since `from`, from the start of its slice on.
    pub(crate) fn top(&self, from: Instant, now: Instant, limit: usize) -> Vec<Total> {
        let mut totals: HashMap<(&Series, &Arc<str>), Tally> = HashMap::new();
        let mut missed: HashMap<&Series, u64> = HashMap::new();
        for (series, sketch) in self.slices(from, now).flatten() {
            *missed.entry(series).or_default() += sketch.missed();
            for (subject, tally) in sketch.iter() {
                totals.entry((series, subject)).and_modify(|t| t.add(*tally)).or_insert(*tally);
            }
        }
        let mut totals: Vec<_> = totals.into_iter().collect();
        let rank = |((series, subject), tally): &((&Series, &Arc<str>), Tally)| {
            (
                std::cmp::Reverse((tally.refused, tally.last_seen)),
                (*series).clone(),
                (*subject).clone(),
            )
        };
        if totals.len() > limit && limit > 0 {
            totals.select_nth_unstable_by_key(limit - 1, rank);
        }
        totals.truncate(limit);
        totals.sort_by_cached_key(rank);
        let total = |((series, subject), tally): ((&Series, &Arc<str>), Tally)| Total {
            missed: missed.get(series).copied().unwrap_or_default(),
            series: series.clone(),
            subject: subject.clone(),
            tally,
        };
        totals.into_iter().map(total).collect()
    }

    /// One subject's refusals after `from`: never one too many. Those in the slice that `from` lies
    /// in count only if none of them is older.
    pub(crate) fn within(
        &self,
        series: &Series,
        subject: &str,
        from: Instant,
        now: Instant,
    ) -> Option<Tally> {
        let slices = self.slices(from, now);
        let tallies = slices.filter_map(|slice| slice.get(series)?.get(subject));
        tallies.filter(|tally| tally.first_seen >= from).reduce(|mut sum, tally| {
            sum.add(tally);
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60;
    const DAY: i64 = 24 * 60 * MINUTE;

    fn series() -> Series {
        Series { policy: "p".into(), limit: "l".into() }
    }

    fn refused(subjects: &[(&str, i64)]) -> Refusals {
        let mut sketch = Sketch::new(1000);
        for (subject, secs) in subjects {
            sketch.add((*subject).into(), Tally::one(Instant::from_secs(*secs)));
        }
        Refusals::from_iter([(series(), sketch)])
    }

    fn history(capacity: usize) -> History {
        History::new(Span::from_secs(5 * MINUTE), Span::from_secs(60 * MINUTE), capacity)
    }

    fn counts(history: &History, since_secs: i64) -> Vec<(String, u64)> {
        let top = history.top(Instant::from_secs(since_secs), Instant::from_secs(DAY), 10);
        top.iter().map(|total| (total.subject.to_string(), total.tally.refused)).collect()
    }

    #[test]
    fn slices_are_counted_from_the_one_asked_for() {
        let mut history = history(100);
        for minute in 0..20 {
            let secs = minute * MINUTE;
            history.add(&refused(&[("ada", secs), ("bob", secs)]), Instant::from_secs(secs));
        }
        history.add(&refused(&[("ada", 1199)]), Instant::from_secs(1199));
        assert_eq!(counts(&history, 0), [("ada".into(), 21), ("bob".into(), 20)]);
        assert_eq!(counts(&history, 899), [("ada".into(), 11), ("bob".into(), 10)]);
        assert_eq!(counts(&history, 900), [("ada".into(), 6), ("bob".into(), 5)]);
        assert_eq!(counts(&history, 1200), []);
    }

    #[test]
    fn what_is_older_than_it_is_kept_is_forgotten() {
        let mut history = history(100);
        history.add(&refused(&[("ada", 0)]), Instant::from_secs(0));
        history.add(&refused(&[("bob", 3900)]), Instant::from_secs(3900));
        assert_eq!(history.len(), 2);
        history.add(&refused(&[("bob", 4300)]), Instant::from_secs(4300));
        assert_eq!(counts(&history, 0), [("bob".into(), 2)]);
    }

    #[test]
    fn a_window_never_counts_what_lies_before_it() {
        let mut history = history(100);
        for secs in [10, 290, 310, 320] {
            history.add(&refused(&[("ada", secs)]), Instant::from_secs(secs));
        }
        let now = Instant::from_secs(900);
        let within = |from| history.within(&series(), "ada", Instant::from_secs(from), now);
        assert_eq!(within(0).unwrap().refused, 4);
        assert_eq!(within(10).unwrap().refused, 4);
        // One of the two in the first slice is older, and which one is not known any more.
        assert_eq!(within(11).unwrap().refused, 2);
        assert_eq!(within(600), None);
        assert_eq!(history.within(&series(), "bob", Instant::from_secs(0), now), None);
    }

    #[test]
    fn what_is_still_to_come_does_not_count() {
        let mut history = history(100);
        for secs in [10, 3_000] {
            history.add(&refused(&[("ada", secs)]), Instant::from_secs(secs));
        }
        let counted = |from, now| {
            let (from, now) = (Instant::from_secs(from), Instant::from_secs(now));
            let within = history.within(&series(), "ada", from, now).map(|tally| tally.refused);
            let top = history.top(from, now, 9);
            assert_eq!(top.first().map(|total| total.tally.refused), within);
            within
        };
        assert_eq!(
            [counted(0, 60), counted(0, 2_999), counted(0, 3_000)],
            [Some(1), Some(1), Some(2)]
        );
        assert_eq!([counted(600, 2_999), counted(600, 599)], [None, None]);
    }

    #[test]
    fn all_slices_together_are_bounded_and_the_error_says_so() {
        let mut history = history(50_000);
        let names: Vec<String> = (0..40_000).map(|number| format!("subject {number}")).collect();
        for slice in 0..4 {
            let secs = slice * 5 * MINUTE;
            let mut sketch = Sketch::new(100_000);
            for name in &names {
                sketch.add(name.as_str().into(), Tally::one(Instant::from_secs(secs)));
            }
            let often = Tally { refused: 500, ..Tally::one(Instant::from_secs(secs)) };
            sketch.add("often".into(), often);
            history.add(&Refusals::from_iter([(series(), sketch)]), Instant::from_secs(secs));
            assert!(history.len() <= MAX_SUBJECTS);
        }
        let top = history.top(Instant::from_secs(0), Instant::from_secs(DAY), 1);
        let missed = top[0].missed;
        assert!(missed > 0 && &*top[0].subject == "often", "{top:?}");
        assert!(top[0].tally.refused + missed >= 2000, "{top:?}");
    }
}
