//! How bad things are: what may go wrong with a statement, and how often.

use std::time::Duration;

use super::wire::SqlError;
use crate::dice::Dice;

/// Of so many statements one; 0 is never.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// Whether anything takes time at all.
    pub(super) ticks: bool,
    pub(super) pauses: u64,
    pub(super) storms: u64,
    pub(super) errors: u64,
    pub(super) cuts: u64,
}

/// What happens to one statement besides itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Fine,
    /// It is not done, and PostgreSQL says why.
    Error(Fault),
    /// The line is cut before it is done.
    CutBefore,
    /// It is done, and the answer is lost.
    CutAfter,
    /// It is done, and nobody hears of it; nor of the line's end.
    SilentAfter,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Cancelled,
    Deadlock,
    OutOfMemory,
    Serialization,
}

impl Fault {
    pub(super) fn error(self) -> SqlError {
        let (code, message) = match self {
            Self::Cancelled => ("57014", "canceling statement due to user request"),
            Self::Deadlock => ("40P01", "deadlock detected"),
            Self::OutOfMemory => ("53200", "out of memory"),
            Self::Serialization => ("40001", "could not serialize access"),
        };
        SqlError { code, message }
    }
}

impl Weather {
    /// Nothing goes wrong.
    pub(super) const CALM: Self = Self { ticks: false, pauses: 0, storms: 0, errors: 0, cuts: 0 };

    /// Every seed has one of its own, so that what shows only in fair weather shows too.
    pub(super) fn of(dice: &mut Dice) -> Self {
        Self {
            ticks: true,
            pauses: dice.pick(&[0, 3, 8, 20]),
            storms: dice.pick(&[0, 0, 60, 200]),
            errors: dice.pick(&[0, 0, 40, 150]),
            cuts: dice.pick(&[0, 0, 40, 150]),
        }
    }

    pub(super) fn fate(&self, dice: &mut Dice) -> Fate {
        if happens(self.errors, dice) {
            return Fate::Error(dice.pick(&[
                Fault::Cancelled,
                Fault::Deadlock,
                Fault::OutOfMemory,
                Fault::Serialization,
            ]));
        }
        if happens(self.cuts, dice) {
            return dice.pick(&[
                Fate::CutBefore,
                Fate::CutAfter,
                Fate::CutAfter,
                Fate::SilentAfter,
            ]);
        }
        Fate::Fine
    }

    /// How long the next step takes, if anybody would notice.
    pub(super) fn pause(&self, dice: &mut Dice) -> Option<Duration> {
        if happens(self.storms, dice) {
            return Some(Duration::from_millis(100 + dice.below(900)));
        }
        happens(self.pauses, dice).then(|| Duration::from_millis(1 + dice.below(20)))
    }
}

fn happens(one_in: u64, dice: &mut Dice) -> bool {
    one_in > 0 && dice.one_in(one_in)
}
