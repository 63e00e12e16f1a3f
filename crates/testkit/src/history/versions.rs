//! Which version of a policy an answer may have been made by.

use super::{Answer, Outcome, Terms};

/// A refusal may be repeated from memory for so long.
const SHIELD_MICROS: i64 = 1_000_000;
/// The shield measures its second by a steady clock, the log by the clock of the wall.
const CLOCKS_MICROS: i64 = 20_000;
/// What is from memory may be so old.
pub(super) const REMEMBERED_MICROS: i64 = SHIELD_MICROS + CLOCKS_MICROS;

/// The versions of one policy, oldest first.
#[derive(Clone, Debug)]
pub struct Versions(Vec<Version>);

#[derive(Clone, Debug)]
pub struct Version {
    pub number: u64,
    /// When it was made; it was in force a moment later.
    pub created_at: i64,
    /// When the next one was first known to be in force: whoever asks later, is answered by that.
    pub replaced_by: Option<i64>,
    /// One per limit, in the policy's order.
    pub terms: Vec<Terms>,
}

impl Versions {
    pub fn new(mut versions: Vec<Version>) -> Self {
        versions.sort_by_key(|version| version.number);
        Self(versions)
    }

    /// One that never changes.
    pub fn only(terms: Vec<Terms>) -> Self {
        Self(vec![Version { number: 1, created_at: i64::MIN, replaced_by: None, terms }])
    }

    /// The version that made this answer. `None`: none that was in force can have.
    pub(super) fn of(&self, answer: &Answer<'_>) -> Option<&Version> {
        let late = match answer.outcome {
            Outcome::Refused { from_memory: true } => REMEMBERED_MICROS,
            Outcome::Refused { from_memory: false } | Outcome::Allowed { .. } | Outcome::Looked => {
                0
            }
        };
        let in_force = |version: &&Version| {
            let replaced_by = version.replaced_by.map_or(i64::MAX, |at| at.saturating_add(late));
            answer.decided_at >= version.created_at && answer.asked_at <= replaced_by
        };
        let says_so = |version: &&Version| match answer.version {
            Some(number) => version.number == number,
            None => version.terms.iter().zip(answer.limits).all(|(a, b)| a.holds == b.max),
        };
        self.0.iter().filter(in_force).find(says_so)
    }
}
