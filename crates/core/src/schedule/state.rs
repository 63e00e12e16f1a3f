//! What a store keeps of one window: which positions are taken, and how many guests it holds.
//!
//! A guest is a slot that was given under another `per`: it counts, and stands at no position of
//! this window. Instants are not kept: with an even spread a position says its own.
//!
//! Bytes: the form, the guests, then the positions as runs (gap and length, in turn) or as a
//! bitmap without trailing zeros, whichever is shorter. Decoding takes any bytes and never panics;
//! what it accepts, it encodes back to itself.

use std::ops::Range;

use super::positions::{MAX_PLACES, PositionSet};
use crate::encoding::{Malformed, Reader, Writer};

const RUNS: u8 = 1;
const BITMAP: u8 = 2;

/// The places given in one window.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WindowState {
    pub taken: PositionSet,
    /// Slots in this window that were given under another `per`.
    pub guests: u64,
}

impl WindowState {
    pub const fn count(&self) -> u64 {
        self.taken.len().saturating_add(self.guests)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer(&mut bytes);
        writer.byte(RUNS);
        writer.uint(u128::from(self.guests));
        let header = writer.0.len();
        let bitmap = self.taken.end().div_ceil(8) as usize;
        let mut end = 0;
        for run in self.taken.runs() {
            writer.uint(u128::from(run.start - end));
            writer.uint(u128::from(run.end - run.start));
            end = run.end;
            if writer.0.len() > header + bitmap {
                writer.0.truncate(header);
                writer.0.extend(self.taken.bytes());
                writer.0[0] = BITMAP;
                break;
            }
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let form = reader.byte()?;
        let guests = reader.u64()?;
        let taken = match form {
            RUNS => PositionSet::from_runs(&runs_of(reader.0)?),
            BITMAP => PositionSet::from_words(words_of(reader.0)?),
            _ => return Err(Malformed),
        };
        let state = Self { taken, guests };
        if state.encode() == bytes { Ok(state) } else { Err(Malformed) }
    }
}

fn runs_of(bytes: &[u8]) -> Result<Vec<Range<u64>>, Malformed> {
    let mut reader = Reader(bytes);
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut end = 0u64;
    while !reader.0.is_empty() {
        let (gap, length) = (reader.u64()?, reader.u64()?);
        let start = end.checked_add(gap).ok_or(Malformed)?;
        end = start.checked_add(length).ok_or(Malformed)?;
        if length == 0 || end > MAX_PLACES {
            return Err(Malformed);
        }
        runs.push(start..end);
    }
    Ok(runs)
}

fn words_of(bytes: &[u8]) -> Result<Vec<u64>, Malformed> {
    if bytes.len() as u64 > MAX_PLACES / 8 {
        return Err(Malformed);
    }
    let word_of =
        |bytes: &[u8]| bytes.iter().rev().fold(0, |word: u64, byte| (word << 8) | u64::from(*byte));
    Ok(bytes.chunks(8).map(word_of).collect())
}
