//! One subject's own maximum in one limit: made, listed, taken away, and found again.
//!
//! Stored are the subject as people may see it and the bytes it was counted under when the override
//! was made. Those depend on the limit's `by`, `private` and `ipv6_prefix`; so where the subject is
//! known, what it counts under is worked out anew from the limit as it is. Of a private subject only
//! keyed hashes are known: its override is in force while the limit counts as it did then. Whoever
//! names the subject can take an override away in any case.

use std::collections::HashMap;
use std::hash::BuildHasher;

use tollgate_core::store::Override;
use tollgate_core::{Limit, MAX_UNITS, Quota};

use crate::catalogue::{possible_name, read_stored};
use crate::compiled::{
    FINGERPRINT_BYTES, ValueBytes, attributes_fingerprint, private_hash, push_values,
};
use crate::error::{BadSubject, Error};
use crate::gate::Tollgate;
use crate::policy::Policy;
use crate::secret::{Keyed, MAC_BYTES};
use crate::subject::{self, Attributes};

/// What is shown instead of a private value.
const HIDDEN: &str = "(private)";

impl Tollgate {
    /// Gives one subject its own maximum in one limit.
    pub async fn put_override(
        &self,
        policy: &str,
        limit: &str,
        subject: Attributes<'_>,
        max: u64,
        by: &str,
    ) -> Result<Override, Error> {
        if max > MAX_UNITS {
            let message = format!("must be at most {MAX_UNITS}");
            return Err(Error::BadOverride(BadSubject { field: "max".into(), message }));
        }
        let _changing = self.shared.changing.lock().await;
        self.reload_if_shared().await?;
        let (values, shown) = self.override_key(policy, limit, subject)?;
        let compiled = self.policy(policy)?;
        let prefix = limit_of(compiled.policy(), limit).map(|limit| limit.ipv6_prefix);
        let replaced = self.overrides_of(policy, limit, subject, prefix.as_slice())?;
        let mut change = Override {
            policy: policy.to_owned(),
            limit: limit.to_owned(),
            values,
            subject: shown,
            max,
            created_by: by.to_owned(),
            created_at: self.now(),
        };
        self.shared.store.put_override(change.clone()).await?;
        // Those that were counted under other bytes then. After, so that there is always one.
        for old in replaced.into_iter().filter(|old| old.values != change.values) {
            self.shared.store.delete_override(old.policy, old.limit, old.values).await?;
        }
        self.reload_locked().await?;
        let live = self.shared.live.load();
        let is_it = |kept: &&Override| {
            (&kept.policy, &kept.limit, &kept.values)
                == (&change.policy, &change.limit, &change.values)
        };
        if let Some(kept) = live.overrides.iter().find(is_it) {
            change.created_at = kept.created_at;
        }
        Ok(change)
    }

    /// Whether there was one to remove.
    pub async fn delete_override(
        &self,
        policy: &str,
        limit: &str,
        subject: Attributes<'_>,
    ) -> Result<bool, Error> {
        possible_name(policy)?;
        let _changing = self.shared.changing.lock().await;
        self.reload_if_shared().await?;
        let prefixes = self.prefixes_of(policy, limit).await?;
        let found = self.overrides_of(policy, limit, subject, &prefixes)?;
        if found.is_empty() {
            // If there can be none, that is the answer.
            self.override_key(policy, limit, subject)?;
            return Ok(false);
        }
        let mut removed = false;
        for old in found {
            removed |= self.shared.store.delete_override(old.policy, old.limit, old.values).await?;
        }
        self.reload_locked().await?;
        Ok(removed)
    }

    pub fn overrides(&self) -> Vec<Override> {
        self.shared.live.load().overrides.clone()
    }

    /// The overrides of a subject, whatever its limit counted by when they were made. Private ones
    /// are known by their hashes, with addresses cut at one of `prefixes`.
    fn overrides_of(
        &self,
        policy: &str,
        limit: &str,
        subject: Attributes<'_>,
        prefixes: &[u8],
    ) -> Result<Vec<Override>, Error> {
        let (live, privacy) = (self.shared.live.load(), &self.shared.privacy);
        let listed: Vec<_> = live
            .overrides
            .iter()
            .filter(|kept| kept.policy == policy && kept.limit == limit)
            .collect();
        let limit = live.policies.get(policy).and_then(|found| limit_of(found.policy(), limit));
        let counted = limit.and_then(|limit| values_of(limit, subject, privacy));
        let is_counted_alike = |kept: &Override| {
            counted.is_some()
                && limit.and_then(|limit| values_in_force(kept, limit, privacy)) == counted
        };
        let is_named = |kept: &Override| match Shown::of(kept) {
            Shown::Known(pairs) => is_same(&pairs, subject),
            Shown::Hidden(_) => hides(kept, subject, prefixes, privacy),
        };
        let found = listed.iter().filter(|kept| is_counted_alike(kept) || is_named(kept));
        let found: Vec<Override> = found.map(|kept| (*kept).clone()).collect();
        if found.is_empty() { only_as_listed(&listed, subject) } else { Ok(found) }
    }

    /// How much of an address a limit ever counted by.
    async fn prefixes_of(&self, policy: &str, limit: &str) -> Result<Vec<u8>, Error> {
        let versions = self.shared.store.policy_versions(policy.to_owned()).await?;
        let documents = versions.iter().filter_map(|version| version.document.as_deref());
        let mut prefixes: Vec<_> = documents
            .filter_map(|document| read_stored(policy, document).ok())
            .filter_map(|policy| Some(limit_of(&policy, limit)?.ipv6_prefix))
            .collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        Ok(prefixes)
    }

    /// The subject as the limit counts it, and as people may see it.
    fn override_key(
        &self,
        policy: &str,
        limit: &str,
        attributes: Attributes<'_>,
    ) -> Result<(Vec<u8>, String), Error> {
        let compiled = self.policy(policy)?;
        let limit = limit_of(compiled.policy(), limit).ok_or_else(|| Error::NoSuchLimit {
            policy: policy.to_owned(),
            limit: limit.to_owned(),
        })?;
        if limit.by.is_empty() {
            let message = "counts everybody together, so no subject can have its own max; \
                           change the policy's max instead";
            return Err(Error::BadOverride(BadSubject {
                field: "limit".into(),
                message: message.into(),
            }));
        }
        subject::check(attributes)?;
        if let Some((name, _)) =
            attributes.iter().find(|(name, _)| !limit.by.iter().any(|by| by == name))
        {
            let message = format!("is not counted by the limit {:?}", limit.name);
            let field = format!("subject.{name}");
            return Err(Error::BadOverride(BadSubject { field, message }));
        }
        let mut values = ValueBytes::new();
        push_values(limit, attributes, &self.shared.privacy, &mut values)?;
        let shown: serde_json::Map<_, _> = attributes
            .iter()
            .map(|(name, value)| {
                let shown = if limit.private { HIDDEN } else { value };
                ((*name).to_owned(), shown.into())
            })
            .collect();
        let values = [&attributes_fingerprint(limit), values.as_slice()].concat();
        Ok((values, serde_json::Value::Object(shown).to_string()))
    }
}

/// Overrides by the policy and the limit they are of: sorted once for all policies that are read
/// together.
pub(crate) struct ByLimit<'a>(
    HashMap<(&'a str, &'a str), Vec<&'a Override>, foldhash::fast::RandomState>,
);

impl<'a> ByLimit<'a> {
    pub(crate) fn of(overrides: &'a [Override]) -> Self {
        let mut by_limit: HashMap<_, Vec<_>, _> = HashMap::default();
        for kept in overrides {
            by_limit.entry((&*kept.policy, &*kept.limit)).or_default().push(kept);
        }
        Self(by_limit)
    }

    /// The quotas of subjects that have their own in this limit, by what they count under.
    pub(crate) fn quotas_in_force<S: BuildHasher + Default>(
        &self,
        policy: &str,
        limit: &Limit,
        privacy: &Keyed,
    ) -> HashMap<Vec<u8>, Quota, S> {
        let of_limit = self.0.get(&(policy, &*limit.name)).map_or(&[][..], Vec::as_slice);
        let mut found: Vec<_> = of_limit
            .iter()
            .filter_map(|kept| {
                let values = values_in_force(kept, limit, privacy)?;
                let is_as_made = kept.values.get(FINGERPRINT_BYTES..) == Some(&*values);
                Some((is_as_made, kept.created_at, values, kept.max))
            })
            .collect();
        // The last of several stays: one that was made for the limit as it is, or else the newest.
        found.sort_by_key(|(is_as_made, created_at, ..)| (*is_as_made, *created_at));
        found.into_iter().map(|(.., values, max)| (values, limit.rule.quota(max))).collect()
    }
}

/// What the subject of an override counts under now; `None` if the limit counts by something else.
fn values_in_force(kept: &Override, limit: &Limit, privacy: &Keyed) -> Option<Vec<u8>> {
    match Shown::of(kept) {
        Shown::Known(pairs) => values_of(limit, &lent(&pairs), privacy),
        Shown::Hidden(_) => {
            // Of another `by`, the same bytes would be somebody else.
            let values = kept.values.strip_prefix(&attributes_fingerprint(limit))?;
            Some(values.to_vec())
        }
    }
}

/// `None` if the limit does not count by exactly these attributes.
fn values_of(limit: &Limit, attributes: Attributes<'_>, privacy: &Keyed) -> Option<Vec<u8>> {
    if limit.by.len() != attributes.len() {
        return None;
    }
    let mut values = ValueBytes::new();
    push_values(limit, attributes, privacy, &mut values).ok()?;
    Some(values.to_vec())
}

/// The subject of an override, as far as it is known.
enum Shown {
    Known(Vec<(String, String)>),
    /// Only its attributes are.
    Hidden(Vec<String>),
}

impl Shown {
    fn of(kept: &Override) -> Self {
        let pairs: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&kept.subject).unwrap_or_default();
        if pairs.values().all(|value| value == HIDDEN) {
            return Self::Hidden(pairs.into_iter().map(|(name, _)| name).collect());
        }
        let text = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        Self::Known(pairs.into_iter().map(|(name, value)| (name, text(value))).collect())
    }
}

fn lent(pairs: &[(String, String)]) -> Vec<(&str, &str)> {
    pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// In whatever order.
fn is_same(pairs: &[(String, String)], subject: Attributes<'_>) -> bool {
    pairs.len() == subject.len() && lent(pairs).iter().all(|pair| subject.contains(pair))
}

/// The one private override that is listed by what stands there instead of a subject.
fn only_as_listed(listed: &[&Override], subject: Attributes<'_>) -> Result<Vec<Override>, Error> {
    let is_hidden = subject.iter().all(|(_, value)| *value == HIDDEN);
    let is_listed_so = |kept: &&&Override| is_hidden && has_names(kept, subject);
    let found: Vec<_> = listed.iter().filter(is_listed_so).map(|kept| (*kept).clone()).collect();
    if found.len() > 1 {
        let message = format!(
            "is what {} overrides are listed by; give the values of the one you mean",
            found.len()
        );
        return Err(Error::BadOverride(BadSubject { field: "subject".into(), message }));
    }
    Ok(found)
}

/// Whether a private override is of these attributes.
fn has_names(kept: &Override, subject: Attributes<'_>) -> bool {
    let Shown::Hidden(names) = Shown::of(kept) else { return false };
    names.len() == subject.len()
        && subject.iter().all(|(name, _)| names.iter().any(|kept| kept == name))
}

/// Whether the hashes of an override are those of this subject, in whatever order the limit counted.
fn hides(kept: &Override, subject: Attributes<'_>, prefixes: &[u8], privacy: &Keyed) -> bool {
    let hashes = kept.values.get(FINGERPRINT_BYTES..).unwrap_or_default();
    let has = |name: &str, value: &str, prefix: u8| {
        let hash = private_hash(name, &subject::normalise(name, value, prefix), privacy);
        hashes.chunks_exact(MAC_BYTES).any(|kept| kept == hash)
    };
    has_names(kept, subject)
        && hashes.len() == subject.len() * MAC_BYTES
        && subject
            .iter()
            .all(|(name, value)| prefixes.iter().any(|prefix| has(name, value, *prefix)))
}

fn limit_of<'a>(policy: &'a Policy, name: &str) -> Option<&'a Limit> {
    policy.limits().iter().find(|limit| limit.name == name)
}
