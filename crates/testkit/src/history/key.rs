//! One key of one limit: all that was said about it, replayed in order of time.

use super::standing::{Doubt, Side, Standing};
use super::versions::REMEMBERED_MICROS;
use super::{Answer, GivenBack, Outcome, Rule, Seen, Tally, Terms, Wrong};

#[derive(Clone, Debug)]
pub(super) struct KeyHistory {
    rule: Rule,
    lines: Vec<Line>,
    doubts: Vec<Doubt>,
}

/// What one answer says of this key.
#[derive(Clone, Copy, Debug)]
struct Line {
    at: i64,
    used: u64,
    terms: Terms,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// Only how it stands: another limit refused, or somebody looked.
    Stands,
    /// The same out of an instance's memory: it may be a second old.
    Stood,
    Refused {
        cost: u64,
        from_memory: bool,
    },
    Allowed {
        cost: u64,
        told_at: i64,
        given_back: Option<GivenBack>,
    },
}

impl KeyHistory {
    pub(super) fn new(rule: Rule) -> Self {
        Self { rule, lines: Vec::new(), doubts: Vec::new() }
    }

    pub(super) fn add(&mut self, answer: &Answer<'_>, seen: &Seen, terms: Terms) {
        let cost = u64::from(answer.cost);
        let what = match answer.outcome {
            Outcome::Allowed { given_back } => {
                What::Allowed { cost, told_at: answer.told_at, given_back }
            }
            Outcome::Refused { from_memory } if seen.refuses => What::Refused { cost, from_memory },
            Outcome::Refused { from_memory: true } => What::Stood,
            Outcome::Refused { from_memory: false } | Outcome::Looked => What::Stands,
        };
        self.lines.push(Line { at: answer.decided_at, used: seen.used, terms, what });
    }

    pub(super) fn doubt(&mut self, doubt: Doubt) {
        self.doubts.push(doubt);
    }

    pub(super) fn judge(mut self, mut fault: impl FnMut(i64, Wrong)) -> Tally {
        // Within a batch all have one instant. What is used grows in the order they were allowed;
        // whoever was refused need not know of those allowed after it.
        self.lines.sort_by_key(|line| (line.at, line.is_allowed(), line.used));
        self.replay_least(&mut fault);
        self.replay_most(&mut fault);
        let mut tally = Tally::default();
        for line in &self.lines {
            match line.what {
                What::Allowed { cost, given_back: None, .. } => tally.units += cost,
                What::Refused { .. } => tally.refusals += 1,
                What::Allowed { .. } | What::Stands | What::Stood => {}
            }
        }
        tally
    }

    /// Is anything allowed above max? Does any answer know of less than was answered before it?
    fn replay_least(&self, fault: &mut impl FnMut(i64, Wrong)) {
        let mut least = Standing::new(self.rule, Side::Least);
        let mut refunds = self.refunds().into_iter().peekable();
        // Not yet told to anybody: whoever only looks may have looked before it was counted.
        let mut untold: Vec<(i64, (u64, Terms))> = Vec::new();
        for line in self.lines.iter().filter(|line| !line.is_from_memory()) {
            let Line { at, used, terms, what } = *line;
            while let Some((_, spend)) = refunds.next_if(|(from, _)| *from <= at) {
                least.give_back(spend);
            }
            untold.retain(|(told_at, _)| *told_at > at);
            let held = if let What::Allowed { cost, told_at, .. } = what {
                least.spend(at, cost, terms);
                untold.push((told_at, (cost, terms)));
                let held = least.held(at, terms);
                if held > terms.holds {
                    fault(at, Wrong::OneTooMany { held, max: terms.holds });
                }
                held
            } else {
                let unsure: Vec<_> = untold.iter().map(|(_, spend)| *spend).collect();
                least.held_at_least(at, terms, &unsure)
            };
            if held > used {
                fault(at, Wrong::Forgotten { held, used });
            }
        }
    }

    /// Is anything refused that fits? Does any answer know of more than was ever asked for?
    fn replay_most(&self, fault: &mut impl FnMut(i64, Wrong)) {
        let terms = self.lines.iter().map(|line| line.terms);
        let mut most = Standing::most(self.rule, &self.doubts, terms);
        let mut refunds = self.refunds_known().into_iter().peekable();
        // Of late: an instance's memory need not know of them.
        let mut fresh: Vec<(i64, u64)> = Vec::new();
        for instant in self.lines.chunk_by(|a, b| a.at == b.at) {
            let now = instant.first().map_or(i64::MIN, |line| line.at);
            while let Some((by, number, cost)) = refunds.next_if(|(by, ..)| *by < now) {
                most.give_back(number);
                fresh.push((by, cost));
            }
            fresh.retain(|(by, _)| by.saturating_add(REMEMBERED_MICROS) >= now);
            // All that was allowed at an instant counts before anything is held against it.
            for line in instant {
                if let What::Allowed { cost, .. } = line.what {
                    most.spend(line.at, cost, line.terms);
                }
            }
            for line in instant {
                let Line { at, used, terms, what } = *line;
                let mut held = most.held(at, terms);
                if line.is_from_memory() {
                    held += fresh.iter().map(|(_, cost)| cost).sum::<u64>();
                }
                if used > held {
                    fault(at, Wrong::Invented { held, used });
                }
                if let What::Refused { cost, .. } = what
                    && held + cost <= terms.holds
                {
                    fault(at, Wrong::RefusedForNothing { held, cost, max: terms.holds });
                }
            }
        }
    }

    /// What was given back, from when, as the number of its spend. Never in the microsecond it was
    /// spent in, because whoever gives back has read the answer.
    fn refunds(&self) -> Vec<(i64, usize)> {
        let given =
            self.given_back().map(|(number, at, _, given)| (given.from.max(at + 1), number));
        let mut refunds: Vec<_> = given.collect();
        refunds.sort_unstable();
        refunds
    }

    /// What is known to be given back, since when, as the number of its spend and its cost. Nothing of a
    /// bucket: what it gives back may be less than was spent.
    fn refunds_known(&self) -> Vec<(i64, usize, u64)> {
        if matches!(self.rule, Rule::Bucket { .. } | Rule::UnitBucket { .. }) {
            return Vec::new();
        }
        let known = self.given_back().filter_map(|(number, at, cost, given)| {
            // It was spent before it was given back, whatever the clocks say.
            Some((given.by?.max(at), number, cost))
        });
        let mut known: Vec<_> = known.collect();
        known.sort_unstable();
        known
    }

    /// The number, instant and cost of every spend that was given back.
    fn given_back(&self) -> impl Iterator<Item = (usize, i64, u64, GivenBack)> {
        let spends = self.lines.iter().filter_map(|line| match line.what {
            What::Allowed { cost, given_back, .. } => Some((line.at, cost, given_back)),
            _ => None,
        });
        spends
            .enumerate()
            .filter_map(|(number, (at, cost, given))| Some((number, at, cost, given?)))
    }
}

impl Line {
    fn is_allowed(&self) -> bool {
        matches!(self.what, What::Allowed { .. })
    }

    fn is_from_memory(&self) -> bool {
        matches!(self.what, What::Stood | What::Refused { from_memory: true, .. })
    }
}
