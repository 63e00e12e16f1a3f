//! Bytes of states and spends, for stores and receipts: a kind byte, then LEB128 integers.
//!
//! Decoding takes any bytes and never panics; what it accepts, it encodes back to itself.

use std::fmt;

use crate::bucket::{Bucket, FineInstant, FineSpan};
use crate::fixed::Fixed;
use crate::limit::MAX_BUCKETS;
use crate::sliding::{Counted, Sliding};
use crate::state::{Spend, State};
use crate::store::Key;
use crate::time::{Instant, Span};
use crate::unit_bucket::{FineUnits, UnitBucket};

const FIXED: u8 = 1;
const SLIDING: u8 = 2;
const BUCKET: u8 = 3;
const BUCKET_REFUNDED: u8 = 4;
const UNIT_BUCKET: u8 = 5;

/// The bytes are not what this version writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("malformed bytes: written by another version, or damaged")
    }
}

impl std::error::Error for Malformed {}

/// Appends integers and byte strings.
#[derive(Debug)]
pub struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    pub fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    #[inline]
    pub fn uint(&mut self, value: u128) {
        match u64::try_from(value) {
            Ok(value) => self.u64(value),
            Err(_) => self.u128(value),
        }
    }

    /// Ten bytes at most, put together first: states are written for every decision.
    #[inline]
    pub fn u64(&mut self, mut value: u64) {
        let (mut bytes, mut length) = ([0; 10], 0);
        while value >= 0x80 {
            bytes[length] = value as u8 | 0x80;
            value >>= 7;
            length += 1;
        }
        bytes[length] = value as u8;
        self.0.extend_from_slice(&bytes[..=length]);
    }

    fn u128(&mut self, mut value: u128) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Zigzag, so that instants before the epoch stay short.
    pub fn instant(&mut self, at: Instant) {
        let micros = at.as_micros();
        self.u64(((micros << 1) ^ (micros >> 63)) as u64);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Read back as bytes.
    pub fn key(&mut self, key: Key<'_>) {
        self.u64((key.limit.to_le_bytes().len() + key.values.len()) as u64);
        self.0.extend_from_slice(&key.limit.to_le_bytes());
        self.0.extend_from_slice(key.values);
    }

    pub fn state(&mut self, state: &State) {
        match state {
            State::Fixed(fixed) => {
                self.byte(FIXED);
                self.instant(fixed.ends_at);
                self.u64(fixed.count);
            }
            State::Sliding(sliding) => {
                self.byte(SLIDING);
                self.u64(sliding.lifetime.as_micros() as u64);
                self.instant(sliding.latest);
                self.u64(sliding.bucket_count() as u64);
                let mut before: Option<Instant> = None;
                for bucket in sliding.buckets() {
                    match before {
                        None => self.instant(bucket.starts_at),
                        Some(before) => self.u64(bucket.starts_at.micros_since(before) as u64),
                    }
                    self.u64(bucket.count);
                    before = Some(bucket.starts_at);
                }
            }
            State::Bucket(packed) => self.bucket(&packed.unpack()),
            State::RefundedBucket(bucket) => self.bucket(bucket),
            State::UnitBucket(bucket) => {
                self.byte(UNIT_BUCKET);
                self.instant(bucket.latest);
                self.instant(bucket.since);
                self.u64(bucket.per.as_micros() as u64);
                self.u64(bucket.max);
                self.fine_units(bucket.owed);
                self.fine_units(bucket.left);
            }
        }
    }

    fn bucket(&mut self, bucket: &Bucket) {
        self.byte(if bucket.refunded == 0 { BUCKET } else { BUCKET_REFUNDED });
        self.fine_instant(bucket.tat);
        self.instant(bucket.latest);
        if bucket.refunded > 0 {
            self.uint(bucket.refunded);
        }
    }

    pub fn spend(&mut self, spend: &Spend) {
        match spend {
            Spend::Fixed { ends_at } => {
                self.byte(FIXED);
                self.instant(*ends_at);
            }
            Spend::Sliding { starts_at, leaves_at } => {
                self.byte(SLIDING);
                self.instant(*starts_at);
                self.instant(*leaves_at);
            }
            Spend::Bucket { tat_after, spent, refunded_before } => {
                self.byte(BUCKET);
                self.fine_instant(*tat_after);
                self.uint(*spent);
                self.uint(*refunded_before);
            }
            Spend::UnitBucket { since, end, expires_at } => {
                self.byte(UNIT_BUCKET);
                self.instant(*since);
                self.fine_units(*end);
                self.instant(*expires_at);
            }
        }
    }

    /// Apart, because they are mostly whole: a fraction of zero is one byte.
    fn fine_units(&mut self, units: FineUnits) {
        self.u64((units >> 64) as u64);
        self.u64(units as u64);
    }

    fn fine_instant(&mut self, at: FineInstant) {
        self.instant(Instant::from_micros(at.micros));
        self.u64(u64::from(at.fraction));
    }
}

/// Reads back what a [`Writer`] wrote.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.0.split_first().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    /// At most 19 bytes; a longer or padded form is refused, so that each value has one form.
    pub fn uint(&mut self) -> Result<u128, Malformed> {
        let mut value: u128 = 0;
        for shift in (0..128).step_by(7) {
            let byte = self.byte()?;
            let part = u128::from(byte & 0x7f);
            if (part << shift) >> shift != part || (byte == 0 && shift > 0) {
                return Err(Malformed);
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        u64::try_from(self.uint()?).map_err(|_| Malformed)
    }

    pub fn instant(&mut self) -> Result<Instant, Malformed> {
        let zigzag = self.u64()?;
        Ok(Instant::from_micros((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.uint()?).map_err(|_| Malformed)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Everything must have been read.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }

    pub fn state(&mut self) -> Result<State, Malformed> {
        Ok(match self.byte()? {
            FIXED => State::Fixed(Fixed { ends_at: self.instant()?, count: self.u64()? }),
            SLIDING => State::Sliding(Box::new(self.sliding()?)),
            BUCKET => {
                let (tat, latest) = (self.fine_instant()?, self.instant()?);
                Bucket { tat, latest, refunded: 0 }.into()
            }
            BUCKET_REFUNDED => {
                let (tat, latest) = (self.fine_instant()?, self.instant()?);
                match self.uint()? {
                    0 => return Err(Malformed),
                    refunded => Bucket { tat, latest, refunded }.into(),
                }
            }
            UNIT_BUCKET => self.unit_bucket()?.into(),
            _ => return Err(Malformed),
        })
    }

    fn unit_bucket(&mut self) -> Result<UnitBucket, Malformed> {
        let (latest, since) = (self.instant()?, self.instant()?);
        let (per, max) = (self.span()?, self.u64()?);
        if max == 0 {
            return Err(Malformed);
        }
        let (owed, left) = (self.fine_units()?, self.fine_units()?);
        Ok(UnitBucket { latest, since, per, max, owed, left })
    }

    fn span(&mut self) -> Result<Span, Malformed> {
        i64::try_from(self.u64()?).ok().and_then(Span::from_micros).ok_or(Malformed)
    }

    fn fine_units(&mut self) -> Result<FineUnits, Malformed> {
        let (whole, fraction) = (self.u64()?, self.u64()?);
        Ok(FineUnits::from(whole) << 64 | FineUnits::from(fraction))
    }

    fn sliding(&mut self) -> Result<Sliding, Malformed> {
        let lifetime = self.span()?;
        let latest = self.instant()?;
        let length = self.u64()?;
        // One more than the window holds: the bucket that is just leaving.
        if length > MAX_BUCKETS as u64 + 1 {
            return Err(Malformed);
        }
        let mut buckets: Vec<Counted> = Vec::with_capacity(length as usize);
        for _ in 0..length {
            let starts_at = match buckets.last() {
                None => self.instant()?,
                Some(before) => {
                    let gap = i64::try_from(self.u64()?).map_err(|_| Malformed)?;
                    let starts_at = before.starts_at.as_micros().checked_add(gap);
                    match starts_at {
                        Some(starts_at) if gap > 0 => Instant::from_micros(starts_at),
                        _ => return Err(Malformed),
                    }
                }
            };
            match self.u64()? {
                0 => return Err(Malformed),
                count => buckets.push(Counted { starts_at, count }),
            }
        }
        Ok(Sliding::new(lifetime, latest, buckets))
    }

    pub fn spend(&mut self) -> Result<Spend, Malformed> {
        Ok(match self.byte()? {
            FIXED => Spend::Fixed { ends_at: self.instant()? },
            SLIDING => Spend::Sliding { starts_at: self.instant()?, leaves_at: self.instant()? },
            BUCKET => {
                let tat_after = self.fine_instant()?;
                let spent: FineSpan = self.uint()?;
                Spend::Bucket { tat_after, spent, refunded_before: self.uint()? }
            }
            UNIT_BUCKET => {
                let (since, end) = (self.instant()?, self.fine_units()?);
                Spend::UnitBucket { since, end, expires_at: self.instant()? }
            }
            _ => return Err(Malformed),
        })
    }

    fn fine_instant(&mut self) -> Result<FineInstant, Malformed> {
        let micros = self.instant()?.as_micros();
        let fraction = u32::try_from(self.uint()?).map_err(|_| Malformed)?;
        Ok(FineInstant { micros, fraction })
    }
}
