//! How much one key holds: the three algorithms once more, as slow and plain as they can be.
//!
//! Written from the promises in DESIGN.md, not from `tollgate-core`, so that a mistake there is not
//! repeated here.

use std::cmp::Reverse;

use super::units::Units;
use super::{Rule, Terms};

/// Times within a bucket are kept in units of 2⁻³² µs.
const FINE: i128 = 1 << 32;

/// Which way to err where a promise leaves room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Never more than the store counts.
    Least,
    /// Never less than the store counts.
    Most,
}

/// What one key holds at the latest instant it was told of. Instants come in order.
#[derive(Debug)]
pub(crate) struct Standing {
    rule: Rule,
    side: Side,
    spends: Vec<Spend>,
    /// The first spend that still counts: before it, all have left.
    first: usize,
    /// Units of those that count. Not used by buckets.
    sum: u64,
    doubts: Doubts,
    /// Counts instead of `spends` where a bucket has a burst of its own.
    units: Option<Units>,
}

#[derive(Clone, Copy, Debug)]
struct Spend {
    at: i64,
    cost: u64,
    /// For buckets: what it adds, and when the bucket is full again after it.
    adds: i128,
    full_at: i128,
}

/// Units that may have been counted, at one moment out of a stretch of time, its ends included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt {
    pub(crate) units: u64,
    pub(crate) from: i64,
    pub(crate) until: i64,
}

/// The doubts of a key, as time passes.
#[derive(Debug, Default)]
struct Doubts {
    /// Not begun yet, by their beginning; and those that have, by their end. The next is the last.
    coming: Vec<Doubt>,
    leaving: Vec<Doubt>,
    /// Units of those that have begun and not left.
    units: u64,
    /// For buckets: what a unit adds at the dearest of all terms.
    dearest: i128,
}

impl Standing {
    pub(crate) fn new(rule: Rule, side: Side) -> Self {
        let units = match rule {
            Rule::UnitBucket { per } => Some(Units::new(per, side)),
            Rule::Fixed { .. } | Rule::Sliding { .. } | Rule::Bucket { .. } => None,
        };
        let doubts = Doubts::default();
        Self { rule, side, spends: Vec::new(), first: 0, sum: 0, doubts, units }
    }

    /// The most that a key can hold if each of these may have been counted, at one of these terms.
    pub(crate) fn most(rule: Rule, doubts: &[Doubt], terms: impl Iterator<Item = Terms>) -> Self {
        let mut coming = doubts.to_vec();
        coming.sort_by_key(|doubt| Reverse(doubt.from));
        let mut leaving = doubts.to_vec();
        leaving.sort_by_key(|doubt| Reverse(doubt.until));
        let dearest = match rule {
            Rule::Fixed { .. } | Rule::Sliding { .. } | Rule::UnitBucket { .. } => None,
            Rule::Bucket { per } => terms.map(|terms| unit_fine(per, terms, Side::Most)).max(),
        };
        let dearest = dearest.unwrap_or_default();
        let doubts = Doubts { coming, leaving, units: 0, dearest };
        Self { doubts, ..Self::new(rule, Side::Most) }
    }

    /// Counts `cost` at `at`.
    pub(crate) fn spend(&mut self, at: i64, cost: u64, terms: Terms) {
        self.leave(at);
        if let Some(units) = &mut self.units {
            return units.spend(at, cost, terms.max);
        }
        let adds = match self.rule {
            Rule::Bucket { per } => unit_fine(per, terms, self.side) * i128::from(cost),
            Rule::Fixed { .. } | Rule::Sliding { .. } | Rule::UnitBucket { .. } => 0,
        };
        let full_at = self.full_at_after(self.spends.len()).max(fine(at)) + adds;
        self.spends.push(Spend { at, cost, adds, full_at });
        self.sum += cost;
    }

    /// Takes the `number`th spend back, as if it had never been.
    pub(crate) fn give_back(&mut self, number: usize) {
        if let Some(units) = &mut self.units {
            return units.give_back(number);
        }
        let cost = std::mem::take(&mut self.spends[number].cost);
        self.spends[number].adds = 0;
        if number >= self.first {
            self.sum -= cost;
        }
        if matches!(self.rule, Rule::Bucket { .. }) {
            for later in number..self.spends.len() {
                let before = self.full_at_after(later);
                let spend = &mut self.spends[later];
                spend.full_at = before.max(fine(spend.at)) + spend.adds;
            }
        }
    }

    /// Units that count at `at`, in the measure of these terms.
    pub(crate) fn held(&mut self, at: i64, terms: Terms) -> u64 {
        self.held_at_least(at, terms, &[])
    }

    /// The same, if any of these spends, each so many units at such terms, may not have been yet.
    pub(crate) fn held_at_least(&mut self, at: i64, terms: Terms, unsure: &[(u64, Terms)]) -> u64 {
        self.leave(at);
        if let Some(units) = &mut self.units {
            let unsure = unsure.iter().map(|(cost, _)| cost).sum();
            return units.held(at, terms.max, self.doubts.units, unsure);
        }
        let Rule::Bucket { per } = self.rule else {
            let sum = self.sum + self.doubts.units;
            return sum.saturating_sub(unsure.iter().map(|(cost, _)| cost).sum());
        };
        let doubt = i128::from(self.doubts.units) * self.doubts.dearest;
        let owed = self.full_at_after(self.spends.len()).max(fine(at)) - fine(at) + doubt;
        let adds =
            |(cost, terms): &(u64, Terms)| unit_fine(per, *terms, Side::Most) * i128::from(*cost);
        let owed = (owed - unsure.iter().map(adds).sum::<i128>()).max(0);
        // Rounded up: a fraction too much is too much. The unit itself is the store's.
        let unit = unit_fine(per, terms, Side::Most);
        u64::try_from((owed + unit - 1) / unit).unwrap_or(u64::MAX)
    }

    /// Lets go of what no longer counts at `at`. In buckets nothing leaves, time passes.
    fn leave(&mut self, at: i64) {
        self.pass_doubts(at);
        let gone = |spend: &Spend| match (self.rule, self.side) {
            (Rule::Fixed { per }, _) => spend.at.div_euclid(per) < at.div_euclid(per),
            (Rule::Sliding { per, .. }, Side::Least) => spend.at <= at - per,
            // Counted in pieces of `resolution`, each as long as its last microsecond.
            (Rule::Sliding { per, resolution }, Side::Most) => {
                spend.at <= at - per - (resolution - 1)
            }
            (Rule::Bucket { .. } | Rule::UnitBucket { .. }, _) => false,
        };
        while let Some(spend) = self.spends.get(self.first).filter(|spend| gone(spend)) {
            self.sum -= spend.cost;
            self.first += 1;
        }
    }

    /// From its beginning on a doubt counts in full, until it has left even if it was counted last. In a
    /// bucket it then is a spend of its last moment: no earlier one would leave the bucket fuller.
    fn pass_doubts(&mut self, at: i64) {
        while let Some(doubt) = self.doubts.coming.pop_if(|doubt| doubt.from <= at) {
            self.doubts.units += doubt.units;
        }
        let rule = self.rule;
        let has_left = |until: i64| match rule {
            Rule::Fixed { per } => until.div_euclid(per) < at.div_euclid(per),
            Rule::Sliding { per, resolution } => until <= at - per - (resolution - 1),
            Rule::Bucket { .. } | Rule::UnitBucket { .. } => until <= at,
        };
        while let Some(doubt) = self.doubts.leaving.pop_if(|doubt| has_left(doubt.until)) {
            self.doubts.units -= doubt.units;
            if let Some(units) = &mut self.units {
                units.spend_unsure(doubt.until, doubt.units);
            }
            if matches!(rule, Rule::Bucket { .. }) {
                let adds = i128::from(doubt.units) * self.doubts.dearest;
                let before = self.full_at_after(self.spends.len());
                let full_at = before.max(fine(doubt.until)) + adds;
                self.spends.push(Spend { at: doubt.until, cost: doubt.units, adds, full_at });
            }
        }
    }

    /// When a bucket is full again after its first `count` spends.
    fn full_at_after(&self, count: usize) -> i128 {
        count.checked_sub(1).map_or(i128::MIN / 2, |last| self.spends[last].full_at)
    }
}

fn fine(at: i64) -> i128 {
    i128::from(at) * FINE
}

/// The time one unit takes to come back.
fn unit_fine(per: i64, terms: Terms, side: Side) -> i128 {
    let (per, max) = (fine(per), i128::from(terms.max.max(1)));
    match side {
        Side::Least => per / max,
        Side::Most => (per + max - 1) / max,
    }
}
