//! A policy made ready: the fingerprint of each limit, quotas worked out, overrides at hand.
//!
//! A key is the fingerprint of its limit, then the counted values, each but the last with its length. The fingerprint
//! covers what a count depends on, so a changed window or algorithm begins new counts and a
//! changed `max` keeps the old ones.

use std::collections::HashMap;

use smallvec::SmallVec;
use tollgate_core::store::{Ask, KeyedClaim, Override};
use tollgate_core::{Claim, Cost, INLINE_LIMITS, Instant, Intent, Limit, Quota, Rule, Window};

use crate::error::BadSubject;
use crate::policy::{MAX_LIMITS, Policy};
use crate::secret::{Keyed, sha256};
use crate::subject::{self, Attributes};

const FINGERPRINT_BYTES: usize = 8;
/// Keys of one request that fit here need no heap.
pub(crate) const INLINE_KEY_BYTES: usize = 128;

/// A policy in force.
#[derive(Debug)]
pub struct Compiled {
    policy: Policy,
    version: u64,
    effective_from: Instant,
    /// Of the catalogue it was read from; `None` if it is stored nowhere.
    epoch: Option<u64>,
    /// The limit whose key all requests share, or else the first.
    crux: usize,
    limits: Vec<CompiledLimit>,
}

#[derive(Debug)]
struct CompiledLimit {
    fingerprint: [u8; FINGERPRINT_BYTES],
    counts_by: CountsBy,
    quota: Quota,
    /// In the order of the limit's `max_by`.
    quotas_by: Vec<Quota>,
    overrides: HashMap<Vec<u8>, Quota, foldhash::fast::RandomState>,
}

/// What stands in a key besides the fingerprint: the simple cases apart, which most are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CountsBy {
    Nothing,
    /// The value of one attribute, as it is given.
    OneAsGiven,
    Several,
}

impl CountsBy {
    fn of(limit: &Limit) -> Self {
        match &*limit.by {
            [] => Self::Nothing,
            [name] if !limit.private && !subject::is_normalised(name) => Self::OneAsGiven,
            _ => Self::Several,
        }
    }
}

/// The keys of one request, one after the other.
#[derive(Clone)]
pub(crate) struct Keys {
    bytes: KeyBytes,
    /// Where each key ends, and how many there are.
    ends: [u32; MAX_LIMITS],
    count: usize,
}

impl Keys {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { bytes: KeyBytes::new(), ends: [0; MAX_LIMITS], count: 0 }
    }

    #[inline]
    pub(crate) fn get(&self, position: usize) -> &[u8] {
        let start = if position == 0 { 0 } else { self.ends[position - 1] };
        &self.bytes.as_slice()[start as usize..self.ends[position] as usize]
    }

    /// What a key holds besides its limit's fingerprint.
    pub(crate) fn values(&self, position: usize) -> &[u8] {
        &self.get(position)[FINGERPRINT_BYTES..]
    }
}

/// Bytes that stay off the heap while they are few. Plainer than a general small vector, and
/// several times faster at the one thing done here.
#[derive(Clone)]
pub(crate) struct KeyBytes {
    inline: [u8; INLINE_KEY_BYTES],
    length: usize,
    /// Everything, once it no longer fits inline.
    spilled: Vec<u8>,
}

impl KeyBytes {
    pub(crate) fn new() -> Self {
        Self { inline: [0; INLINE_KEY_BYTES], length: 0, spilled: Vec::new() }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        if self.spilled.is_empty() { &self.inline[..self.length] } else { &self.spilled }
    }

    #[inline]
    fn extend(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if self.spilled.is_empty() {
            if let Some(room) = self.inline.get_mut(self.length..end) {
                room.copy_from_slice(bytes);
                self.length = end;
                return;
            }
            self.spilled.extend_from_slice(&self.inline[..self.length]);
        }
        self.spilled.extend_from_slice(bytes);
        self.length = end;
    }
}

pub(crate) type Claims<'a> = SmallVec<[KeyedClaim<'a>; INLINE_LIMITS]>;

impl Compiled {
    pub(crate) fn new(
        policy: Policy,
        version: u64,
        effective_from: Instant,
        epoch: Option<u64>,
        overrides: &[Override],
    ) -> Self {
        let limits = policy
            .limits()
            .iter()
            .map(|limit| CompiledLimit {
                fingerprint: fingerprint(policy.name(), limit),
                counts_by: CountsBy::of(limit),
                quota: limit.rule.quota(limit.max),
                quotas_by: limit
                    .max_by
                    .iter()
                    .flat_map(|max_by| &max_by.values)
                    .map(|(_, max)| limit.rule.quota(*max))
                    .collect(),
                overrides: overrides
                    .iter()
                    .filter(|change| change.policy == policy.name() && change.limit == limit.name)
                    .filter_map(|change| {
                        // Of another `by`, the same bytes would be somebody else.
                        let values = change.values.strip_prefix(&attributes_fingerprint(limit))?;
                        Some((values.to_vec(), limit.rule.quota(change.max)))
                    })
                    .collect(),
            })
            .collect();
        let crux = policy.limits().iter().position(|limit| limit.by.is_empty()).unwrap_or(0);
        Self { policy, version, effective_from, epoch, crux, limits }
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// 0 for a policy value that is stored nowhere.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn effective_from(&self) -> Instant {
        self.effective_from
    }

    /// A request of this policy.
    #[inline]
    pub(crate) fn ask<'a>(
        &self,
        intent: Intent,
        cost: Cost,
        claims: &'a [KeyedClaim<'a>],
    ) -> Ask<'a> {
        let durability = self.policy.durability();
        Ask { intent, cost, durability, epoch: self.epoch, crux: self.crux, claims }
    }

    pub(crate) fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// Limits of `self` that count anew if it replaces `before`.
    pub(crate) fn restarted_since(&self, before: &Self) -> Vec<String> {
        let fingerprints = |compiled: &Self| -> Vec<_> {
            compiled.limits.iter().map(|limit| limit.fingerprint).collect()
        };
        let before_names: Vec<_> = before.policy.limits().iter().map(|limit| &limit.name).collect();
        let kept = fingerprints(before);
        self.policy
            .limits()
            .iter()
            .zip(fingerprints(self))
            .filter(|(limit, fingerprint)| {
                before_names.contains(&&limit.name) && !kept.contains(fingerprint)
            })
            .map(|(limit, _)| limit.name.clone())
            .collect()
    }

    /// Writes the keys this subject counts under, one per limit.
    #[inline]
    pub(crate) fn write_keys(
        &self,
        attributes: Attributes<'_>,
        privacy: &Keyed,
        keys: &mut Keys,
    ) -> Result<(), BadSubject> {
        subject::check(attributes)?;
        for (limit, compiled) in self.policy.limits().iter().zip(&self.limits) {
            keys.bytes.extend(&compiled.fingerprint);
            match compiled.counts_by {
                CountsBy::Nothing => {}
                CountsBy::OneAsGiven => {
                    keys.bytes.extend(value_of(limit, attributes, &limit.by[0])?.as_bytes());
                }
                CountsBy::Several => push_values(limit, attributes, privacy, &mut keys.bytes)?,
            }
            // Bounded by the attributes a subject may have, well below this.
            keys.ends[keys.count] = keys.bytes.length as u32;
            keys.count += 1;
        }
        Ok(())
    }

    /// What this subject may have under each of its `keys`.
    #[inline]
    pub(crate) fn write_claims<'a>(
        &'a self,
        attributes: Attributes<'_>,
        keys: &'a Keys,
        claims: &mut Claims<'a>,
    ) {
        for (position, (limit, compiled)) in
            self.policy.limits().iter().zip(&self.limits).enumerate()
        {
            let key = keys.get(position);
            let quota = compiled.quota_of(limit, attributes, &key[FINGERPRINT_BYTES..]);
            let claim = Claim { rule: &limit.rule, quota, shadow: limit.shadow };
            claims.push(KeyedClaim { claim, key });
        }
    }
}

impl CompiledLimit {
    #[inline]
    fn quota_of(&self, limit: &Limit, attributes: Attributes<'_>, values: &[u8]) -> &Quota {
        if !self.overrides.is_empty()
            && let Some(quota) = self.overrides.get(values)
        {
            return quota;
        }
        let Some(max_by) = &limit.max_by else { return &self.quota };
        subject::find(attributes, &max_by.attribute)
            .and_then(|value| max_by.position(value))
            .map_or(&self.quota, |position| &self.quotas_by[position])
    }
}

#[inline]
fn value_of<'a>(
    limit: &Limit,
    attributes: Attributes<'a>,
    name: &str,
) -> Result<&'a str, BadSubject> {
    subject::find(attributes, name).ok_or_else(|| missing(limit, name))
}

#[cold]
fn missing(limit: &Limit, name: &str) -> BadSubject {
    BadSubject {
        field: format!("subject.{name}"),
        message: format!("is missing: the limit {:?} counts by it", limit.name),
    }
}

/// The values `limit` counts by, as they stand in its keys.
pub(crate) fn push_values(
    limit: &Limit,
    attributes: Attributes<'_>,
    privacy: &Keyed,
    bytes: &mut KeyBytes,
) -> Result<(), BadSubject> {
    for (position, name) in limit.by.iter().enumerate() {
        let value = value_of(limit, attributes, name)?;
        let value = subject::normalise(name, value, limit.ipv6_prefix);
        if limit.private {
            bytes.extend(&privacy.mac(&[name.as_bytes(), &[0], value.as_bytes()]));
        } else {
            // The last value needs no length; the others are bounded well below this.
            if position + 1 < limit.by.len() {
                bytes.extend(&(value.len() as u16).to_le_bytes());
            }
            bytes.extend(value.as_bytes());
        }
    }
    Ok(())
}

/// Names what a limit counts by, in order.
pub(crate) fn attributes_fingerprint(limit: &Limit) -> [u8; FINGERPRINT_BYTES] {
    let names: Vec<&[u8]> = limit.by.iter().map(|name| name.as_bytes()).collect();
    let full = sha256(&names);
    std::array::from_fn(|position| full[position])
}

fn fingerprint(policy: &str, limit: &Limit) -> [u8; FINGERPRINT_BYTES] {
    let rule = match &limit.rule {
        Rule::Fixed(Window::Span(per)) => format!("fixed {}", per.as_micros()),
        Rule::Fixed(Window::Calendar(unit, zone)) => {
            format!("fixed {} {}", unit.as_str(), zone.iana_name().unwrap_or("UTC"))
        }
        Rule::Sliding { per, resolution } => {
            format!("sliding {} {}", per.as_micros(), resolution.as_micros())
        }
        Rule::Bucket { per, .. } => format!("bucket {}", per.as_micros()),
    };
    let hiding = if limit.private { "private" } else { "plain" };
    let prefix = limit.ipv6_prefix.to_string();
    let mut parts: Vec<&[u8]> =
        vec![policy.as_bytes(), limit.name.as_bytes(), rule.as_bytes(), hiding.as_bytes()];
    // Only where it matters: another prefix is another way to count.
    if limit.by.iter().any(|name| name == "ip") {
        parts.push(prefix.as_bytes());
    }
    parts.extend(limit.by.iter().map(|name| name.as_bytes()));
    let full = sha256(&parts);
    std::array::from_fn(|position| full[position])
}
