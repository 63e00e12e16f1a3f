//! One line of an instance's log: 64 bytes, written before the instance goes on.
//!
//! A log is appended to, one record with one write, so a kill leaves whole records and at most half
//! a one at the end.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use tollgate::{Answer, Outcome, Refunded, StoreErrorKind, Verdict};

use crate::http::LIMITS;

pub(crate) const BYTES: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) task: u16,
    pub(crate) turn: u32,
    /// When it was asked, by this machine's clock.
    pub(crate) asked_at: i64,
    /// When the answer was here.
    pub(crate) told_at: i64,
    pub(crate) what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// An instance began, or began again.
    Born,
    Answered(Answered),
    /// No answer; it may have been counted all the same.
    Failed(StoreErrorKind),
    /// What came of giving the turn's spend back.
    GaveBack(Refunded),
    /// What the store's own counters show.
    Stats {
        batched: u64,
        shielded: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answered {
    pub(crate) allowed: bool,
    /// Without asking the database.
    pub(crate) from_memory: bool,
    /// Answered before, under the same idempotency key.
    pub(crate) replayed: bool,
    /// 0: not told.
    pub(crate) version: u32,
    pub(crate) decided_at: i64,
    /// Which limits refuse, by position.
    pub(crate) refuses: u8,
    pub(crate) max: [u32; LIMITS],
    pub(crate) used: [u32; LIMITS],
}

impl Answered {
    pub(crate) fn of(answer: &Answer) -> Self {
        let decision = &answer.decision;
        let mut answered = Self {
            allowed: decision.outcome == Outcome::Allowed,
            from_memory: false,
            replayed: false,
            version: small(answer.policy.version()),
            decided_at: decision.decided_at.as_micros(),
            refuses: 0,
            max: [0; LIMITS],
            used: [0; LIMITS],
        };
        assert_eq!(answer.degraded, None, "the scene's policies refuse without the store");
        for (position, report) in decision.limits.iter().enumerate() {
            answered.refuses |= u8::from(report.verdict != Verdict::Fits) << position;
            answered.max[position] = small(report.standing.max);
            answered.used[position] = small(report.standing.used);
        }
        answered
    }
}

/// Nothing in a soak counts to four billion.
pub(crate) fn small(number: u64) -> u32 {
    u32::try_from(number).expect("the scene's numbers are small")
}

const ERRORS: [StoreErrorKind; 4] = [
    StoreErrorKind::Unavailable,
    StoreErrorKind::Timeout,
    StoreErrorKind::Contended,
    StoreErrorKind::Corrupt,
];
const REFUNDS: [Refunded; 4] =
    [Refunded::Done, Refunded::Already, Refunded::Expired, Refunded::Forgotten];

const BORN: u8 = 1;
const ANSWERED: u8 = 2;
const FAILED: u8 = 3;
const GAVE_BACK: u8 = 4;
const STATS: u8 = 5;

const ALLOWED: u8 = 1;
const FROM_MEMORY: u8 = 2;
const REPLAYED: u8 = 4;

impl Record {
    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        let mut writer = Fields(Vec::with_capacity(BYTES));
        let (kind, detail) = match self.what {
            What::Born => (BORN, 0),
            What::Answered(answered) => (ANSWERED, answered.flags()),
            What::Failed(kind) => (FAILED, place_of(&ERRORS, &kind)),
            What::GaveBack(refunded) => (GAVE_BACK, place_of(&REFUNDS, &refunded)),
            What::Stats { .. } => (STATS, 0),
        };
        writer.0.extend([kind, detail]);
        writer.0.extend(self.task.to_le_bytes());
        writer.0.extend(self.turn.to_le_bytes());
        writer.0.extend(self.asked_at.to_le_bytes());
        writer.0.extend(self.told_at.to_le_bytes());
        match self.what {
            What::Answered(answered) => answered.write(&mut writer),
            What::Stats { batched, shielded } => {
                writer.0.extend(batched.to_le_bytes());
                writer.0.extend(shielded.to_le_bytes());
            }
            What::Born | What::Failed(_) | What::GaveBack(_) => {}
        }
        writer.0.resize(BYTES, 0);
        writer.0.try_into().expect("it was just made as long")
    }

    /// `None`: no instance wrote this.
    pub(crate) fn from_bytes(bytes: &[u8; BYTES]) -> Option<Self> {
        let [kind, detail, rest @ ..] = bytes;
        let mut reader = rest.as_slice();
        let task = u16::from_le_bytes(take(&mut reader)?);
        let turn = u32::from_le_bytes(take(&mut reader)?);
        let asked_at = i64::from_le_bytes(take(&mut reader)?);
        let told_at = i64::from_le_bytes(take(&mut reader)?);
        let what = match *kind {
            BORN => What::Born,
            ANSWERED => What::Answered(Answered::read(*detail, &mut reader)?),
            FAILED => What::Failed(*ERRORS.get(usize::from(*detail))?),
            GAVE_BACK => What::GaveBack(*REFUNDS.get(usize::from(*detail))?),
            STATS => What::Stats {
                batched: u64::from_le_bytes(take(&mut reader)?),
                shielded: u64::from_le_bytes(take(&mut reader)?),
            },
            _ => return None,
        };
        Some(Self { task, turn, asked_at, told_at, what })
    }
}

impl Answered {
    fn flags(self) -> u8 {
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        flag(self.allowed, ALLOWED)
            | flag(self.from_memory, FROM_MEMORY)
            | flag(self.replayed, REPLAYED)
    }

    fn write(self, fields: &mut Fields) {
        fields.0.extend(self.decided_at.to_le_bytes());
        fields.0.extend(self.version.to_le_bytes());
        fields.0.extend([self.refuses, 0, 0, 0]);
        for number in self.max.iter().chain(&self.used) {
            fields.0.extend(number.to_le_bytes());
        }
    }

    fn read(flags: u8, reader: &mut &[u8]) -> Option<Self> {
        let decided_at = i64::from_le_bytes(take(reader)?);
        let version = u32::from_le_bytes(take(reader)?);
        let [refuses, ..] = take::<4>(reader)?;
        let mut numbers = [0; 2 * LIMITS];
        for number in &mut numbers {
            *number = u32::from_le_bytes(take(reader)?);
        }
        let [a, b, c, d, e, f] = numbers;
        Some(Self {
            allowed: flags & ALLOWED != 0,
            from_memory: flags & FROM_MEMORY != 0,
            replayed: flags & REPLAYED != 0,
            version,
            decided_at,
            refuses,
            max: [a, b, c],
            used: [d, e, f],
        })
    }

    /// The answer alone, as it is recorded under an idempotency key.
    pub(crate) fn to_body(self) -> Vec<u8> {
        let mut fields = Fields(vec![self.flags()]);
        self.write(&mut fields);
        fields.0
    }

    pub(crate) fn from_body(body: &[u8]) -> Option<Self> {
        let (flags, mut rest) = body.split_first()?;
        Self::read(*flags, &mut rest)
    }
}

struct Fields(Vec<u8>);

fn take<const N: usize>(reader: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = reader.split_first_chunk::<N>()?;
    *reader = rest;
    Some(*first)
}

fn place_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    let place = all.iter().position(|other| other == one).expect("all of them are listed");
    u8::try_from(place).expect("there are few")
}

/// A log to append to.
#[derive(Debug)]
pub(crate) struct Log(File);

impl Log {
    /// Goes on behind the last whole record of what is there.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let length = file.metadata()?.len();
        file.set_len(length - length % BYTES as u64)?;
        Ok(Self(file))
    }

    pub(crate) fn write(&self, record: Record) -> io::Result<()> {
        (&self.0).write_all(&record.to_bytes())
    }
}

/// Everything in a log; none if it was never begun.
pub(crate) fn read(path: &Path) -> Result<Vec<Record>, String> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let (whole, _half) = bytes.as_chunks::<BYTES>();
    let records = whole.iter().map(|bytes| {
        Record::from_bytes(bytes).ok_or_else(|| format!("{} is no log of ours", path.display()))
    });
    records.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_read_as_it_was_written() {
        let answered = Answered {
            allowed: true,
            from_memory: false,
            replayed: true,
            version: 7,
            decided_at: 1_772_714_096_789_012,
            refuses: 5,
            max: [1, 2, 3],
            used: [4, 5, u32::MAX],
        };
        for what in [
            What::Born,
            What::Answered(answered),
            What::Answered(Answered {
                allowed: false,
                from_memory: true,
                replayed: false,
                ..answered
            }),
            What::Failed(StoreErrorKind::Contended),
            What::GaveBack(Refunded::Expired),
            What::Stats { batched: u64::MAX, shielded: 3 },
        ] {
            let record = Record { task: 513, turn: 70_000, asked_at: -5, told_at: 6, what };
            assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
        }
        assert_eq!(Answered::from_body(&answered.to_body()), Some(answered));
        assert_eq!(Record::from_bytes(&[0; BYTES]), None);
    }
}
