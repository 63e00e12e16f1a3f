//! What was seen, over all rounds.

use std::fmt;
use std::time::Duration;

use tollgate::{Refunded, StoreErrorKind};

use super::instance::Face;
use super::record::Answered;
use crate::history::{Fault, Wrong};

/// Faults told in full; the others are only counted.
const FAULTS_TOLD: usize = 20;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    pub rounds: u64,
    pub allowed: u64,
    pub refused: u64,
    /// Of these, refusals that an instance repeated from memory; over HTTP nobody can tell.
    pub from_memory: u64,
    pub over_http: u64,
    pub over_http_refused: u64,
    /// Answers replayed under an idempotency key.
    pub replayed: u64,
    /// Idempotency keys whose first answer was lost with whoever asked, and only replays tell.
    pub recovered: u64,
    pub given_back: u64,
    pub not_given_back: u64,
    /// Requests of the library's instances that went through batches, by the store's own count.
    pub batched: u64,
    pub shielded: u64,
    pub unavailable: u64,
    pub timeouts: u64,
    pub contended: u64,
    /// Requests that may have been counted although nobody was answered.
    pub in_doubt: u64,
    pub kills: u64,
    pub crashes: u64,
    pub restarts: u64,
    pub changes: u64,
    pub over_admissions: u64,
    pub forgotten: u64,
    pub invented: u64,
    pub under_admissions: u64,
    pub wrong_versions: u64,
    /// One idempotency key with two answers.
    pub two_answers: u64,
    pub refunded_twice: u64,
    /// The first faults, in words.
    pub faults: Vec<String>,
    pub duration: Duration,
}

impl Summary {
    pub fn decisions(&self) -> u64 {
        self.allowed + self.refused
    }

    /// Decisions that only the database can have made.
    pub fn decided_in_database(&self) -> u64 {
        self.decisions() - self.from_memory - self.replayed
    }

    pub fn errors(&self) -> u64 {
        self.unavailable + self.timeouts + self.contended
    }

    pub fn wrongs(&self) -> u64 {
        self.over_admissions
            + self.forgotten
            + self.invented
            + self.under_admissions
            + self.wrong_versions
            + self.two_answers
            + self.refunded_twice
    }

    pub(super) fn answered(&mut self, answered: &Answered, face: &Face) {
        self.allowed += u64::from(answered.allowed);
        self.refused += u64::from(!answered.allowed);
        self.from_memory += u64::from(answered.from_memory);
        self.replayed += u64::from(answered.replayed);
        if *face != Face::Library {
            self.over_http += 1;
            self.over_http_refused += u64::from(!answered.allowed);
        }
    }

    pub(super) fn failed(&mut self, kind: StoreErrorKind) {
        match kind {
            StoreErrorKind::Unavailable => self.unavailable += 1,
            StoreErrorKind::Timeout => self.timeouts += 1,
            StoreErrorKind::Contended => self.contended += 1,
            StoreErrorKind::Corrupt => unreachable!("an instance that meets this ends"),
        }
    }

    pub(super) fn gave_back(&mut self, refunded: Refunded) {
        match refunded {
            Refunded::Done => self.given_back += 1,
            Refunded::Already | Refunded::Expired | Refunded::Forgotten => self.not_given_back += 1,
        }
    }

    pub(super) fn add_stats(&mut self, (batched, shielded): (u64, u64)) {
        self.batched += batched;
        self.shielded += shielded;
    }

    pub(super) fn add_faults(&mut self, faults: &[Fault]) {
        for fault in faults {
            let count = match fault.wrong {
                Wrong::OneTooMany { .. } => &mut self.over_admissions,
                Wrong::Forgotten { .. } => &mut self.forgotten,
                Wrong::Invented { .. } => &mut self.invented,
                Wrong::RefusedForNothing { .. } => &mut self.under_admissions,
                Wrong::WrongVersion { .. } | Wrong::WrongMax { .. } => &mut self.wrong_versions,
            };
            *count += 1;
            self.faults.push(fault.to_string());
        }
        self.faults.truncate(FAULTS_TOLD);
    }

    /// Adds another round.
    pub fn add(&mut self, round: &Summary) {
        let Summary { faults, duration, .. } = round;
        self.duration += *duration;
        self.faults.extend(faults.iter().cloned());
        self.faults.truncate(FAULTS_TOLD);
        for (sum, number) in self.numbers().into_iter().zip(round.clone().numbers()) {
            *sum += *number;
        }
    }

    fn numbers(&mut self) -> [&mut u64; 27] {
        [
            &mut self.rounds,
            &mut self.allowed,
            &mut self.refused,
            &mut self.from_memory,
            &mut self.over_http,
            &mut self.over_http_refused,
            &mut self.replayed,
            &mut self.recovered,
            &mut self.given_back,
            &mut self.not_given_back,
            &mut self.batched,
            &mut self.shielded,
            &mut self.unavailable,
            &mut self.timeouts,
            &mut self.contended,
            &mut self.in_doubt,
            &mut self.kills,
            &mut self.crashes,
            &mut self.restarts,
            &mut self.changes,
            &mut self.over_admissions,
            &mut self.forgotten,
            &mut self.invented,
            &mut self.under_admissions,
            &mut self.wrong_versions,
            &mut self.two_answers,
            &mut self.refunded_twice,
        ]
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} decisions in {} rounds and {} s: {} allowed, {} refused",
            self.decisions(),
            self.rounds,
            self.duration.as_secs(),
            self.allowed,
            self.refused
        )?;
        writeln!(
            f,
            "  at least {} decided in the database, {} refused from memory, {} replayed",
            self.decided_in_database(),
            self.from_memory - self.over_http_refused,
            self.replayed
        )?;
        writeln!(
            f,
            "  of these {} over HTTP, where {} refusals may have been from memory",
            self.over_http, self.over_http_refused
        )?;
        writeln!(
            f,
            "  the stores' own count, without the last moments of those killed: {} batched, {} shielded",
            self.batched, self.shielded
        )?;
        writeln!(
            f,
            "  {} kills of instances, {} crashes and {} restarts of PostgreSQL, {} versions of policies",
            self.kills, self.crashes, self.restarts, self.changes
        )?;
        writeln!(
            f,
            "  {} errors: {} unavailable, {} timeouts, {} contended; {} requests in doubt",
            self.errors(),
            self.unavailable,
            self.timeouts,
            self.contended,
            self.in_doubt
        )?;
        writeln!(
            f,
            "  refunds: {} done, {} too late or again; {} lost answers were replayed",
            self.given_back, self.not_given_back, self.recovered
        )?;
        write!(
            f,
            "  over-admissions {}, under-admissions {}, forgotten {}, invented {}, \
             wrong versions {}, keys with two answers {}, refunded twice {}",
            self.over_admissions,
            self.under_admissions,
            self.forgotten,
            self.invented,
            self.wrong_versions,
            self.two_answers,
            self.refunded_twice
        )?;
        self.faults.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}
