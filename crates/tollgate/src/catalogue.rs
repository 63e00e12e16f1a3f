//! Changing what is in force: policies and tokens.

use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_core::store::{Base, Catalogue, PolicyVersion, StoreError, StoreErrorKind, Token};

use crate::compiled::Compiled;
use crate::error::Error;
use crate::gate::{Live, Tollgate, Unreadable};
use crate::overrides::ByLimit;
use crate::policy::{MAX_NAME_BYTES, Policy, check_name};
use crate::refresh::changing_too_fast;
use crate::routes::Route;
use crate::routes::table::Table;
use crate::secret::Keyed;
use crate::token::{self, Bearer, NewToken, Revoked, Scope, TokenInForce};

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
    /// A policy that this version cannot read is kept apart: no other suffers for it. Said once.
    pub(crate) fn from_catalogue(catalogue: Catalogue, before: &Self, privacy: &Keyed) -> Self {
        let Catalogue { epoch, policies, overrides, tokens, secret: _ } = catalogue;
        let is_new = policies.is_empty();
        let mut live = Self { overrides, tokens, is_new, epoch, ..Self::default() };
        let mut stand_ins = Vec::new();
        let overrides = ByLimit::of(&live.overrides);
        for stored in policies {
            let PolicyVersion { name, version, document: Some(document), created_at, .. } = stored
            else {
                continue;
            };
            let compile = |policy| {
                let compiled = Compiled::new(policy, version, created_at, Some(epoch));
                compiled.with_overrides(&overrides, privacy)
            };
            match read_stored(&name, &document) {
                Ok(policy) => {
                    live.policies.insert(name, Arc::new(compile(policy)));
                }
                Err(error) => {
                    if before.unreadable.get(&name).is_none_or(|known| known.version != version) {
                        tracing::error!(%error, policy = name, version, "a policy is not in force");
                    }
                    stand_ins.extend(stand_in(&name, &document).map(compile).map(Arc::new));
                    live.unreadable.insert(name, Unreadable { version, error });
                }
            }
        }
        live.routes = Table::new(live.policies.values().chain(&stand_ins));
        live
    }

    pub(crate) fn policy(&self, name: &str) -> Result<&Arc<Compiled>, Error> {
        self.policies.get(name).ok_or_else(|| match self.unreadable.get(name) {
            Some(unreadable) => Error::Store(unreadable.error.clone()),
            None => Error::NoSuchPolicy(name.to_owned()),
        })
    }
}

pub(crate) fn read_stored(name: &str, document: &str) -> Result<Policy, StoreError> {
    let corrupt = |why: String| {
        let message = format!(
            "the stored policy {name:?} cannot be read: {why}; apply it again, or update this \
             program if a newer one stored it"
        );
        StoreError::new(StoreErrorKind::Corrupt, message)
    };
    let document = serde_json::from_str(document).map_err(|error| corrupt(error.to_string()))?;
    Policy::from_json(name, document).map_err(|invalid| corrupt(invalid.to_string()))
}

/// What has the routes of a policy that cannot be read, as far as they can be: its requests are asked
/// about, and answered with its error, instead of passing as if there were no policy for them.
fn stand_in(name: &str, document: &str) -> Option<Policy> {
    let document: Value = serde_json::from_str(document).ok()?;
    let routes = document.get("routes")?.as_array()?.iter().filter_map(Value::as_str);
    let routes: Vec<_> = routes.filter(|route| Route::parse(route).is_ok()).collect();
    let limits = json!([{ "name": "unreadable", "max": 0, "per": "1s" }]);
    Policy::from_json(name, json!({ "routes": routes, "limits": limits })).ok()
}

/// What cannot be a policy's name is none; the store is not asked about it.
pub(crate) fn possible_name(name: &str) -> Result<(), Error> {
    check_name(name).map_err(|_| Error::NoSuchPolicy(name.to_owned()))
}

impl Tollgate {
    /// Puts a policy in force. Applying what is in force already changes nothing.
    pub async fn apply(&self, policy: &Policy, by: &str) -> Result<Applied, Error> {
        let _changing = self.shared.changing.lock().await;
        self.apply_locked(policy, by).await
    }

    /// The same on top of this version. `None` if another is in force by now, which says something
    /// else: then nothing changes.
    pub async fn apply_onto(
        &self,
        version: u64,
        policy: &Policy,
        by: &str,
    ) -> Result<Option<Applied>, Error> {
        let _changing = self.shared.changing.lock().await;
        self.reload_if_shared().await?;
        match self.says_the_same(policy) {
            // Also of another version: whoever lost the answer to this very change tries it again.
            Some(applied) => Ok(Some(applied)),
            None => self.put_in_force(policy, by, Base::InForce(Some(version))).await,
        }
    }

    async fn apply_locked(&self, policy: &Policy, by: &str) -> Result<Applied, Error> {
        self.reload_if_shared().await?;
        if let Some(applied) = self.says_the_same(policy) {
            return Ok(applied);
        }
        self.put_in_force(policy, by, Base::Any).await?.ok_or_else(changing_too_fast)
    }

    /// What is in force already, if this is only another way to write it.
    fn says_the_same(&self, policy: &Policy) -> Option<Applied> {
        let live = self.policy(policy.name()).ok()?;
        live.policy().is_same(policy).then(|| Applied {
            policy: live,
            created: false,
            changed: false,
            restarted: Vec::new(),
        })
    }

    /// On top of what was read of the store since the change began. `None`: of `base` no longer.
    pub(crate) async fn put_in_force(
        &self,
        policy: &Policy,
        by: &str,
        base: Base,
    ) -> Result<Option<Applied>, Error> {
        let found = self.policy(policy.name());
        let created = matches!(found, Err(Error::NoSuchPolicy(_)));
        let before = found.ok();
        let document = policy.document().to_string();
        let name = policy.name().to_owned();
        let store = &self.shared.store;
        let put = store.put_policy(name, Some(document), by.to_owned(), base).await?;
        let Some((made, changed)) = put else { return Ok(None) };
        self.reload_locked().await?;
        let policy = match self.policy(policy.name()) {
            Ok(live) if live.version() == made.version => live,
            // Another instance has changed it again: this is what was in force until then.
            _ => Arc::new(Compiled::new(policy.clone(), made.version, made.created_at, None)),
        };
        let restarted = before.as_ref().map(|before| policy.restarted_since(before));
        let restarted = restarted.unwrap_or_default();
        Ok(Some(Applied { policy, created, changed, restarted }))
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
        if let Err(error @ Error::NoSuchPolicy(_)) = self.policy(name) {
            return Err(error);
        }
        let store = &self.shared.store;
        store.put_policy(name.to_owned(), None, by.to_owned(), Base::Any).await?;
        self.reload_locked().await
    }

    /// The policies in force, by name. One that this version cannot read is not among them.
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
        possible_name(name)?;
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

    /// Makes a token and returns it; it cannot be shown again.
    pub async fn create_token(&self, name: &str, scope: Scope) -> Result<NewToken, Error> {
        let _changing = self.shared.changing.lock().await;
        let token = token::generate()?;
        let kept = Token {
            hash: token::hash(&token),
            name: name.to_owned(),
            scope: scope.as_str().to_owned(),
            created_at: self.now(),
        };
        let id = TokenInForce::of(&kept).id;
        self.shared.store.put_token(kept).await?;
        self.reload_locked().await?;
        Ok(NewToken { id, token })
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
    pub(crate) async fn reload_if_shared(&self) -> Result<(), Error> {
        if self.shared.store.is_shared() { self.reload_locked().await } else { Ok(()) }
    }

    pub(crate) async fn reload_locked(&self) -> Result<(), Error> {
        let catalogue = self.shared.store.catalogue().await?;
        let before = self.shared.live.load_full();
        let live = Live::from_catalogue(catalogue, &before, &self.shared.privacy);
        self.shared.live.store(Arc::new(live));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
