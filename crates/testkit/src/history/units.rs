//! A bucket with a burst of its own: what is owed in `per`ths of a unit, which are whole numbers at every
//! rate. A microsecond takes away `max` of them.
//!
//! Between two spends it is the larger `max` of the two that counts: nobody knows when it changed. Where
//! it is not known either which spends there were, it is the extreme of all.

use super::standing::Side;

#[derive(Debug)]
pub(super) struct Units {
    per: i128,
    side: Side,
    spends: Vec<Spend>,
    /// The fastest rate of all, or the slowest: whatever errs on the side asked for.
    extreme: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Spend {
    at: i64,
    cost: u64,
    max: u64,
    /// What is owed after it.
    owed: i128,
    /// The same by the extreme rate.
    bound: i128,
}

impl Units {
    pub(super) fn new(per: i64, side: Side) -> Self {
        Self { per: per.into(), side, spends: Vec::new(), extreme: None }
    }

    pub(super) fn spend(&mut self, at: i64, cost: u64, max: u64) {
        let max = self.learn(max);
        let at = self.spends.last().map_or(at, |last| last.at.max(at));
        self.spends.push(Spend { at, cost, max, owed: 0, bound: 0 });
        self.count_from(self.spends.len() - 1);
    }

    /// One that may have been at any terms.
    pub(super) fn spend_unsure(&mut self, at: i64, cost: u64) {
        self.spend(at, cost, self.extreme.unwrap_or(1));
    }

    /// Its instant stays one at which the rate may have changed.
    pub(super) fn give_back(&mut self, number: usize) {
        self.spends[number].cost = 0;
        self.count_from(number);
    }

    /// Units that count at `at`, and `more`; less those that may not have been yet.
    pub(super) fn held(&mut self, at: i64, max: u64, more: u64, unsure: u64) -> u64 {
        let max = self.learn(max);
        let Some(last) = self.spends.last() else { return more.saturating_sub(unsure) };
        let (before, rate) = if self.side == Side::Least && unsure == 0 {
            (last.owed, last.max.max(max))
        } else {
            (last.bound, self.extreme.unwrap_or(max))
        };
        let owed = self.after_time(before, at - last.at, rate);
        let owed = owed + (i128::from(more) - i128::from(unsure)) * self.per;
        u64::try_from((owed.max(0) + self.per - 1) / self.per).unwrap_or(u64::MAX)
    }

    /// A store may round each time by far less than one of these parts.
    fn after_time(&self, owed: i128, micros: i64, max: u64) -> i128 {
        let left = i128::from(micros.max(0)) * i128::from(max);
        match self.side {
            Side::Least => (owed - left).max(0),
            Side::Most => (owed - (left - 1).max(0)).max(0),
        }
    }

    fn learn(&mut self, max: u64) -> u64 {
        let max = max.max(1);
        let extreme = match (self.extreme, self.side) {
            (None, _) => max,
            (Some(known), Side::Least) => known.max(max),
            (Some(known), Side::Most) => known.min(max),
        };
        if self.extreme.replace(extreme) != Some(extreme) {
            self.count_from(0);
        }
        max
    }

    fn count_from(&mut self, first: usize) {
        for number in first..self.spends.len() {
            let mut spend = self.spends[number];
            let adds = i128::from(spend.cost) * self.per;
            (spend.owed, spend.bound) = match number.checked_sub(1).map(|last| self.spends[last]) {
                None => (adds, adds),
                Some(last) => {
                    let micros = spend.at - last.at;
                    let extreme = self.extreme.unwrap_or(spend.max);
                    let owed = self.after_time(last.owed, micros, last.max.max(spend.max));
                    (owed + adds, self.after_time(last.bound, micros, extreme) + adds)
                }
            };
            self.spends[number] = spend;
        }
    }
}
