//! Changing what is in force: policies, overrides and tokens.

use std::sync::Arc;

use tollgate_core::MAX_UNITS;
use tollgate_core::store::{Catalogue, Override, PolicyVersion, StoreError, StoreErrorKind, Token};

use crate::compiled::{Compiled, ValueBytes, attributes_fingerprint, push_values};
use crate::error::{BadSubject, Error};
use crate::gate::{Live, Tollgate};
use crate::policy::{MAX_NAME_BYTES, Policy};
use crate::routes::table::Table;
use crate::subject::{self, Attributes};
use crate::token::{self, Bearer, Revoked, Scope, TokenInForce};

/// Names that one asked for in vain is held against.
const MAX_COMPARED: usize = 1_000;

/// What came of applying a policy.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The policy now in force.
    pub policy: Arc<Compiled>,
    /// There was none of this name before.
    pub created: bool,
    /// A new version was made; `false` if the policy is the same as before.
    pub changed: bool,
    /// Limits that were there before and now count anew, because what they count by changed.
    pub restarted: Vec<String>,
}

/// What came of a policy found in a configuration file.
#[derive(Clone, Debug)]
pub enum FilePolicy {
    Applied(Applied),
    /// The file says what it said when it was last applied.
    Unchanged,
}

impl Live {
    pub(crate) fn from_catalogue(catalogue: Catalogue) -> Result<Self, Error> {
        let Catalogue { epoch, policies, overrides, tokens, secret: _ } = catalogue;
        let is_new = policies.is_empty();
        let mut live = Self { overrides, tokens, is_new, epoch, ..Self::default() };
        for stored in policies {
            if let Some(document) = &stored.document {
                let policy = read_stored(&stored.name, document)?;
                let (version, from) = (stored.version, stored.created_at);
                let compiled = Compiled::new(policy, version, from, Some(epoch), &live.overrides);
                live.policies.insert(stored.name, Arc::new(compiled));
            }
        }
        live.routes = Table::new(live.policies.values());
        Ok(live)
    }
}

fn read_stored(name: &str, document: &str) -> Result<Policy, Error> {
    let corrupt = |why: String| {
        let message = format!("the stored policy {name:?} cannot be read: {why}");
        Error::Store(StoreError::new(StoreErrorKind::Corrupt, message))
    };
    let document = serde_json::from_str(document).map_err(|error| corrupt(error.to_string()))?;
    Policy::from_json(name, document).map_err(|invalid| corrupt(invalid.to_string()))
}

impl Tollgate {
    /// Puts a policy in force. Applying what is in force already changes nothing.
    pub async fn apply(&self, policy: &Policy, by: &str) -> Result<Applied, Error> {
        let _changing = self.shared.changing.lock().await;
        self.apply_locked(policy, by).await
    }

    async fn apply_locked(&self, policy: &Policy, by: &str) -> Result<Applied, Error> {
        self.reload_if_shared().await?;
        let before = self.policy(policy.name()).ok();
        let document = policy.document().to_string();
        let name = policy.name().to_owned();
        let (_, changed) =
            self.shared.store.put_policy(name, Some(document), by.to_owned()).await?;
        self.reload_locked().await?;
        let policy = self.policy(policy.name())?;
        let restarted = before.as_ref().map(|before| policy.restarted_since(before));
        Ok(Applied {
            created: before.is_none(),
            changed,
            restarted: restarted.unwrap_or_default(),
            policy,
        })
    }

    /// Puts a policy of a configuration file in force, if the file changed since it was last
    /// applied: so a later change through the API survives a restart.
    pub async fn apply_from_file(&self, policy: &Policy) -> Result<FilePolicy, Error> {
        let _changing = self.shared.changing.lock().await;
        let document = policy.document().to_string();
        let name = policy.name().to_owned();
        let store = &self.shared.store;
        if store.file_policy(name.clone()).await?.as_ref() == Some(&document) {
            return Ok(FilePolicy::Unchanged);
        }
        let applied = self.apply_locked(policy, "file").await?;
        store.put_file_policy(name, document).await?;
        Ok(FilePolicy::Applied(applied))
    }

    /// Takes a policy out of force. Its versions and counts are kept.
    pub async fn delete_policy(&self, name: &str, by: &str) -> Result<(), Error> {
        let _changing = self.shared.changing.lock().await;
        self.reload_if_shared().await?;
        self.policy(name)?;
        self.shared.store.put_policy(name.to_owned(), None, by.to_owned()).await?;
        self.reload_locked().await
    }

    /// The policies in force, by name.
    pub fn policies(&self) -> Vec<Arc<Compiled>> {
        let live = self.shared.live.load();
        let mut policies: Vec<_> = live.policies.values().cloned().collect();
        policies.sort_by(|a, b| a.policy().name().cmp(b.policy().name()));
        policies
    }

    /// The policy in force whose name is nearest to one that is not: did you mean that one? Only
    /// among the first thousand, because anybody may ask.
    pub fn similar_policy(&self, asked: &str) -> Option<String> {
        if asked.len() > MAX_NAME_BYTES {
            return None;
        }
        let live = self.shared.live.load();
        let nearest = live
            .policies
            .keys()
            .take(MAX_COMPARED)
            .map(|name| (strsim::osa_distance(asked, name), name))
            .min()?;
        let (distance, name) = nearest;
        (distance <= asked.chars().count().div_ceil(3)).then(|| name.clone())
    }

    /// Every version of a policy, newest first; also of one that was deleted.
    pub async fn policy_versions(&self, name: &str) -> Result<Vec<PolicyVersion>, Error> {
        let versions = self.shared.store.policy_versions(name.to_owned()).await?;
        if versions.is_empty() {
            return Err(Error::NoSuchPolicy(name.to_owned()));
        }
        Ok(versions)
    }

    /// Whether no policy was ever stored.
    pub fn is_new(&self) -> bool {
        self.shared.live.load().is_new
    }

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
        let change = Override {
            policy: policy.to_owned(),
            limit: limit.to_owned(),
            values,
            subject: shown,
            max,
            created_by: by.to_owned(),
            created_at: self.now(),
        };
        self.shared.store.put_override(change.clone()).await?;
        self.reload_locked().await?;
        Ok(change)
    }

    /// Whether there was one to remove.
    pub async fn delete_override(
        &self,
        policy: &str,
        limit: &str,
        subject: Attributes<'_>,
    ) -> Result<bool, Error> {
        let _changing = self.shared.changing.lock().await;
        self.reload_if_shared().await?;
        let (values, _) = self.override_key(policy, limit, subject)?;
        let (policy, limit) = (policy.to_owned(), limit.to_owned());
        let removed = self.shared.store.delete_override(policy, limit, values).await?;
        self.reload_locked().await?;
        Ok(removed)
    }

    pub fn overrides(&self) -> Vec<Override> {
        self.shared.live.load().overrides.clone()
    }

    /// The subject as the limit counts it, and as people may see it.
    fn override_key(
        &self,
        policy: &str,
        limit: &str,
        attributes: Attributes<'_>,
    ) -> Result<(Vec<u8>, String), Error> {
        let compiled = self.policy(policy)?;
        let found = compiled.policy().limits().iter().find(|found| found.name == limit);
        let limit = found.ok_or_else(|| Error::NoSuchLimit {
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
                let shown = if limit.private { "(private)" } else { value };
                ((*name).to_owned(), shown.into())
            })
            .collect();
        let values = [&attributes_fingerprint(limit), values.as_slice()].concat();
        Ok((values, serde_json::Value::Object(shown).to_string()))
    }

    /// Makes a token and returns it; it cannot be shown again.
    pub async fn create_token(&self, name: &str, scope: Scope) -> Result<String, Error> {
        let _changing = self.shared.changing.lock().await;
        let token = token::generate()?;
        let kept = Token {
            hash: token::hash(&token),
            name: name.to_owned(),
            scope: scope.as_str().to_owned(),
            created_at: self.now(),
        };
        self.shared.store.put_token(kept).await?;
        self.reload_locked().await?;
        Ok(token)
    }

    /// The tokens in force, oldest first.
    pub fn tokens(&self) -> Vec<TokenInForce> {
        let mut tokens: Vec<_> =
            self.shared.live.load().tokens.iter().map(TokenInForce::of).collect();
        tokens.sort_by(|one, other| (one.created_at, &one.id).cmp(&(other.created_at, &other.id)));
        tokens
    }

    /// Ends a token, named by its id. Here it is worthless at once; other instances on the same
    /// store know at their next decision, and whatever needs an admin asks the store first.
    pub async fn revoke_token(&self, id: &str) -> Result<Revoked, Error> {
        let _changing = self.shared.changing.lock().await;
        self.reload_if_shared().await?;
        let live = self.shared.live.load_full();
        let found = live.tokens.iter().find(|token| TokenInForce::of(token).id == id);
        let Some(token) = found else { return Ok(Revoked::Unknown) };
        if !self.shared.store.delete_token(token.hash.clone()).await? {
            return Ok(Revoked::LastAdmin);
        }
        self.reload_locked().await?;
        Ok(Revoked::Done)
    }

    /// Whose token this is.
    pub fn bearer(&self, token: &str) -> Option<Bearer> {
        token::find(&self.shared.live.load().tokens, token)
    }

    /// Whether there is a token of this scope.
    pub fn has_token(&self, scope: Scope) -> bool {
        self.shared.live.load().tokens.iter().any(|token| token.scope == scope.as_str())
    }

    pub fn has_tokens(&self) -> bool {
        !self.shared.live.load().tokens.is_empty()
    }

    /// Reads everything in force from the store again.
    pub async fn reload(&self) -> Result<(), Error> {
        let _changing = self.shared.changing.lock().await;
        self.reload_locked().await
    }

    /// A change is made on top of what other instances made.
    async fn reload_if_shared(&self) -> Result<(), Error> {
        if self.shared.store.is_shared() { self.reload_locked().await } else { Ok(()) }
    }

    pub(crate) async fn reload_locked(&self) -> Result<(), Error> {
        let catalogue = self.shared.store.catalogue().await?;
        self.shared.live.store(Arc::new(Live::from_catalogue(catalogue)?));
        Ok(())
    }
}
