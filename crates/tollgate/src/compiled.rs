//! A policy made ready: the fingerprint of each limit, quotas worked out, overrides at hand.
//!
//! A limit is known by its fingerprint, which covers what a count depends on: so a changed window
//! or algorithm begins new counts, and a changed `max` keeps the old ones.

use std::borrow::Cow;
use std::collections::HashMap;

use smallvec::SmallVec;
use tollgate_core::store::{Ask, Key, KeyedClaim};
use tollgate_core::{Claim, Cost, INLINE_LIMITS, Instant, Intent, Limit, Quota, Rule, Window};

use crate::error::BadSubject;
use crate::overrides::ByLimit;
use crate::policy::Policy;
use crate::secret::{Keyed, MAC_BYTES, sha256};
use crate::subject::{self, Attributes, Form, MAX_ATTRIBUTE_VALUE_BYTES};

pub(crate) const FINGERPRINT_BYTES: usize = 8;
/// Values that are longer together stand in a key as their hash: PostgreSQL's indexes hold no more
/// than 2,704 bytes. Two of any length are counted as they are.
const MAX_PLAIN_BYTES: usize = 2 * (2 + MAX_ATTRIBUTE_VALUE_BYTES);
/// Values of one request that must be built and fit here need no heap.
const INLINE_VALUE_BYTES: usize = 128;

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
    fingerprint: u64,
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
    /// The same, in its normal form, which most are given in.
    OneNormalised(Form),
    Several,
}

impl CountsBy {
    fn of(limit: &Limit) -> Self {
        match &*limit.by {
            [] => Self::Nothing,
            [name] if !limit.private => {
                Form::of(name).map_or(Self::OneAsGiven, Self::OneNormalised)
            }
            _ => Self::Several,
        }
    }
}

/// The keys of one request, by the position of their limit.
#[derive(Clone)]
pub(crate) struct Keys<'a> {
    keys: SmallVec<[(u64, Values<'a>); INLINE_LIMITS]>,
    /// Values that do not stand in the request as they are counted.
    built: ValueBytes,
}

pub(crate) type ValueBytes = SmallVec<[u8; INLINE_VALUE_BYTES]>;

#[derive(Clone, Copy)]
enum Values<'a> {
    Given(&'a [u8]),
    /// From here to there in `built`.
    Built(usize, usize),
}

impl<'a> Keys<'a> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { keys: SmallVec::new(), built: SmallVec::new() }
    }

    #[inline]
    pub(crate) fn get(&self, position: usize) -> Key<'_> {
        let (limit, values) = self.keys[position];
        let values = match values {
            Values::Given(values) => values,
            Values::Built(start, end) => &self.built[start..end],
        };
        Key { limit, values }
    }

    /// The same, without the request.
    pub(crate) fn to_owned(&self) -> Keys<'static> {
        let mut owned = Keys::new();
        for position in 0..self.keys.len() {
            let Key { limit, values } = self.get(position);
            let start = owned.built.len();
            owned.built.extend_from_slice(values);
            owned.keys.push((limit, Values::Built(start, owned.built.len())));
        }
        owned
    }

    #[inline]
    fn push(&mut self, limit: u64, value: &'a str) {
        self.keys.push((limit, Values::Given(value.as_bytes())));
    }

    fn push_built(
        &mut self,
        limit: u64,
        build: impl FnOnce(&mut ValueBytes) -> Result<(), BadSubject>,
    ) -> Result<(), BadSubject> {
        let start = self.built.len();
        build(&mut self.built)?;
        self.keys.push((limit, Values::Built(start, self.built.len())));
        Ok(())
    }
}

pub(crate) type Claims<'a> = SmallVec<[KeyedClaim<'a>; INLINE_LIMITS]>;

impl Compiled {
    pub(crate) fn new(
        policy: Policy,
        version: u64,
        effective_from: Instant,
        epoch: Option<u64>,
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
                overrides: HashMap::default(),
            })
            .collect();
        let crux = policy.limits().iter().position(|limit| limit.by.is_empty()).unwrap_or(0);
        Self { policy, version, effective_from, epoch, crux, limits }
    }

    /// Counted apart from all policies of other namespaces, or of none: no policy's name holds a
    /// slash.
    pub(crate) fn counted_in(mut self, namespace: &str) -> Self {
        let name = format!("{namespace}/{}", self.policy.name());
        for (compiled, limit) in self.limits.iter_mut().zip(self.policy.limits()) {
            compiled.fingerprint = fingerprint(&name, limit);
        }
        self
    }

    /// The same, with what single subjects have of their own.
    pub(crate) fn with_overrides(mut self, overrides: &ByLimit<'_>, privacy: &Keyed) -> Self {
        for (limit, compiled) in self.policy.limits().iter().zip(&mut self.limits) {
            compiled.overrides = overrides.quotas_in_force(self.policy.name(), limit, privacy);
        }
        self
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
    pub(crate) fn write_keys<'a>(
        &self,
        attributes: Attributes<'a>,
        privacy: &Keyed,
        keys: &mut Keys<'a>,
    ) -> Result<(), BadSubject> {
        subject::check(attributes)?;
        for (limit, compiled) in self.policy.limits().iter().zip(&self.limits) {
            let fingerprint = compiled.fingerprint;
            match compiled.counts_by {
                CountsBy::Nothing => keys.push(fingerprint, ""),
                CountsBy::OneAsGiven => {
                    keys.push(fingerprint, value_of(limit, attributes, &limit.by[0])?);
                }
                CountsBy::OneNormalised(_) => {
                    match normalised_value_of(limit, attributes, &limit.by[0])? {
                        Cow::Borrowed(value) => keys.push(fingerprint, value),
                        Cow::Owned(value) => keys.push_built(fingerprint, |built| {
                            built.extend_from_slice(value.as_bytes());
                            Ok(())
                        })?,
                    }
                }
                CountsBy::Several => keys.push_built(fingerprint, |built| {
                    push_values(limit, attributes, privacy, built)
                })?,
            }
        }
        Ok(())
    }

    /// The claim of a policy with one limit, if its key stands in the request as it is counted:
    /// found without the detours of the others. `None` also for a subject that is not in order.
    #[inline]
    pub(crate) fn plain_claim<'a>(&'a self, attributes: Attributes<'a>) -> Option<KeyedClaim<'a>> {
        let ([limit], [compiled]) = (self.policy.limits(), &*self.limits) else { return None };
        subject::check(attributes).ok()?;
        compiled.plain_claim(limit, attributes)
    }

    /// The same for any number of limits: whether all of them were written.
    #[inline]
    pub(crate) fn write_plain_claims<'a>(
        &'a self,
        attributes: Attributes<'a>,
        claims: &mut Claims<'a>,
    ) -> bool {
        subject::check(attributes).is_ok()
            && self.policy.limits().iter().zip(&self.limits).all(|(limit, compiled)| {
                compiled.plain_claim(limit, attributes).map(|claim| claims.push(claim)).is_some()
            })
    }

    /// What this subject may have under each of its `keys`.
    #[inline]
    pub(crate) fn write_claims<'a>(
        &'a self,
        attributes: Attributes<'_>,
        keys: &'a Keys<'_>,
        claims: &mut Claims<'a>,
    ) {
        for (position, (limit, compiled)) in
            self.policy.limits().iter().zip(&self.limits).enumerate()
        {
            let key = keys.get(position);
            let quota = compiled.quota_of(limit, attributes, key.values);
            let claim = Claim { rule: &limit.rule, quota, shadow: limit.shadow };
            claims.push(KeyedClaim { claim, key });
        }
    }
}

impl CompiledLimit {
    #[inline(always)]
    fn plain_claim<'a>(
        &'a self,
        limit: &'a Limit,
        attributes: Attributes<'a>,
    ) -> Option<KeyedClaim<'a>> {
        let values = match self.counts_by {
            CountsBy::OneAsGiven => subject::find(attributes, &limit.by[0])?,
            CountsBy::Nothing => "",
            CountsBy::OneNormalised(form) => {
                subject::find(attributes, &limit.by[0]).filter(|value| form.is_normal(value))?
            }
            CountsBy::Several => return None,
        };
        let values = values.as_bytes();
        let quota = self.quota_of(limit, attributes, values);
        let claim = Claim { rule: &limit.rule, quota, shadow: limit.shadow };
        Some(KeyedClaim { claim, key: Key { limit: self.fingerprint, values } })
    }

    #[inline]
    fn quota_of(&self, limit: &Limit, attributes: Attributes<'_>, values: &[u8]) -> &Quota {
        if self.overrides.is_empty() && limit.max_by.is_none() {
            return &self.quota;
        }
        self.own_quota_of(limit, attributes, values)
    }

    fn own_quota_of(&self, limit: &Limit, attributes: Attributes<'_>, values: &[u8]) -> &Quota {
        if let Some(quota) = self.overrides.get(values) {
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

fn normalised_value_of<'a>(
    limit: &Limit,
    attributes: Attributes<'a>,
    name: &str,
) -> Result<Cow<'a, str>, BadSubject> {
    Ok(subject::normalise(name, value_of(limit, attributes, name)?, limit.ipv6_prefix))
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
    bytes: &mut ValueBytes,
) -> Result<(), BadSubject> {
    let start = bytes.len();
    for (position, name) in limit.by.iter().enumerate() {
        let value = normalised_value_of(limit, attributes, name)?;
        if limit.private {
            bytes.extend_from_slice(&private_hash(name, &value, privacy));
        } else {
            // The last value needs no length; the others are bounded well below this.
            if position + 1 < limit.by.len() {
                bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
            }
            bytes.extend_from_slice(value.as_bytes());
        }
    }
    if bytes.len() - start > MAX_PLAIN_BYTES {
        let hash = sha256(&[&bytes[start..]]);
        bytes.truncate(start);
        // No value is that long, so no others look like this.
        bytes.extend_from_slice(&u16::MAX.to_le_bytes());
        bytes.extend_from_slice(&hash);
    }
    Ok(())
}

/// What a private value is counted as.
pub(crate) fn private_hash(name: &str, value: &str, privacy: &Keyed) -> [u8; MAC_BYTES] {
    privacy.mac(&[name.as_bytes(), &[0], value.as_bytes()])
}

/// Names what a limit counts by, in order.
pub(crate) fn attributes_fingerprint(limit: &Limit) -> [u8; FINGERPRINT_BYTES] {
    let names: Vec<&[u8]> = limit.by.iter().map(|name| name.as_bytes()).collect();
    let full = sha256(&names);
    std::array::from_fn(|position| full[position])
}

fn fingerprint(policy: &str, limit: &Limit) -> u64 {
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
    u64::from_le_bytes(std::array::from_fn(|position| full[position]))
}
