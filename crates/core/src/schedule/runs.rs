//! Runs of windows that have no place for anybody who asks in time: one look-up passes a run,
//! however long.
//!
//! Which windows belong into one is not known here.

use std::collections::BTreeMap;
use std::ops::Range;

/// Runs by their start, each with its end (exclusive). No two touch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Runs(BTreeMap<i64, i64>);

impl Runs {
    /// The end of the run that holds `index`.
    pub(super) fn end_after(&self, index: i64) -> Option<i64> {
        self.holding(index).map(|run| run.end)
    }

    /// Adds a run and joins it with those it touches.
    pub(super) fn insert(&mut self, mut run: Range<i64>) {
        if let Some((&start, &end)) = self.0.range(..=run.start).next_back()
            && end >= run.start
        {
            run = start..end.max(run.end);
        }
        while let Some((&start, &end)) = self.0.range(run.start + 1..=run.end).next() {
            self.0.remove(&start);
            run.end = end.max(run.end);
        }
        self.0.insert(run.start, run.end);
    }

    /// Takes `gap` out of the run that holds its start.
    pub(super) fn cut(&mut self, gap: Range<i64>) {
        let Some(run) = self.holding(gap.start) else { return };
        self.0.remove(&run.start);
        if run.start < gap.start {
            self.0.insert(run.start, gap.start);
        }
        if gap.end < run.end {
            self.0.insert(gap.end, run.end);
        }
    }

    /// Forgets what lies before `index`. The run that holds it, if any, is taken out and returned.
    pub(super) fn remove_before(&mut self, index: i64) -> Option<Range<i64>> {
        let holding = self.holding(index);
        self.0 = self.0.split_off(&index);
        if let Some(run) = &holding {
            self.0.remove(&run.start);
        }
        holding
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<i64>> + '_ {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    fn holding(&self, index: i64) -> Option<Range<i64>> {
        let (&start, &end) = self.0.range(..=index).next_back()?;
        (index < end).then_some(start..end)
    }
}
