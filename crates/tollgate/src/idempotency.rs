//! Requests under an idempotency key: decided once, then replayed.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate_core::store::{Checked, Once, OnceKey, Record, Refunded};
use tollgate_core::{Cost, Intent, Span};

use crate::answer::Answer;
use crate::compiled::{Claims, Compiled, Keys};
use crate::error::Error;
use crate::gate::{Shared, Tollgate};
use crate::limiter::Limiter;
use crate::receipt;
use crate::refresh::Call;
use crate::secret::sha256;
use crate::subject::Attributes;

/// How long an answer can be replayed.
const KEPT: Span = Span::from_secs(24 * 3600);

/// A caller's key for one request, within a scope of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdempotencyKey<'a> {
    /// Who asks, and what: keys of different scopes never meet.
    pub scope: &'a [u8],
    pub key: &'a str,
}

/// An answer made now, or the rendering of one made before.
#[derive(Clone, Debug)]
pub enum OnceAnswer<T> {
    Fresh(T),
    Replay(Vec<u8>),
}

impl Tollgate {
    /// A check that has its effect once per key. If it is allowed, what `render` makes of it is
    /// recorded in the same transaction and given back to every later caller with the same key.
    pub async fn check_once(
        &self,
        key: IdempotencyKey<'_>,
        policy: &str,
        subject: Attributes<'_>,
        cost: u32,
        render: impl FnOnce(&Answer) -> Vec<u8> + Send + 'static,
    ) -> Result<OnceAnswer<Answer>, Error> {
        let shared = &self.shared;
        let once = shared.once_key(key, &request_fingerprint(policy, subject, cost));
        // Called at most once, by whichever attempt decides.
        let render = Arc::new(Mutex::new(Some(render)));
        let mut call = Call::of(self, policy);
        let asking = async {
            loop {
                let mut keys = Keys::new();
                let found = call.policy().await.and_then(|policy| {
                    policy.write_keys(subject, &shared.privacy, &mut keys)?;
                    Ok(policy)
                });
                let policy = match found {
                    Ok(policy) => policy,
                    Err(why) => {
                        let before = pin!(self.answered_before(&once, why));
                        return call.within_deadline(before).await;
                    }
                };
                let render = render.clone();
                let asked = pin!(shared.ask_once(&once, &policy, &keys, subject, cost, render));
                if let Some(answer) = call.decided(call.in_time(asked).await?)? {
                    return Ok(answer);
                }
            }
        };
        match asking.await {
            Err(error) => self
                .answer_as_last_known(policy, subject, cost, Intent::Spend, error)
                .map(OnceAnswer::Fresh),
            answered => answered,
        }
    }

    /// Even if the policy is gone or another by now, what was answered is answered again. `why` it
    /// cannot be asked, if nothing was.
    async fn answered_before(
        &self,
        once: &OnceKey,
        why: Error,
    ) -> Result<OnceAnswer<Answer>, Error> {
        match self.shared.store.find_once(once.clone()).await? {
            Some(record) => replay(record, &once.fingerprint),
            None => Err(why),
        }
    }

    /// A refund that, once done, answers the same to every later caller with the same key.
    pub async fn refund_once(
        &self,
        key: IdempotencyKey<'_>,
        receipt: &str,
        render: impl FnOnce(Refunded) -> Vec<u8> + Send + 'static,
    ) -> Result<OnceAnswer<Refunded>, Error> {
        let once = self.shared.once_key(key, &sha256(&[receipt.trim().as_bytes()]));
        let fingerprint = once.fingerprint.clone();
        let receipt = receipt::verify(receipt, &self.shared.signer)?;
        match self.shared.store.refund_once(once, receipt, render).await? {
            Once::Fresh(refunded) => Ok(OnceAnswer::Fresh(refunded)),
            Once::Replay(record) => replay(record, &fingerprint),
        }
    }
}

impl Limiter {
    /// The same as [`Tollgate::check_once`], against this policy.
    pub async fn check_once(
        &self,
        key: IdempotencyKey<'_>,
        subject: Attributes<'_>,
        cost: u32,
        render: impl FnOnce(&Answer) -> Vec<u8> + Send + 'static,
    ) -> Result<OnceAnswer<Answer>, Error> {
        let policy = self.policy();
        let shared = self.shared();
        let fingerprint = request_fingerprint(policy.policy().name(), subject, cost);
        let once = shared.once_key(key, &fingerprint);
        let mut keys = Keys::new();
        policy.write_keys(subject, &shared.privacy, &mut keys)?;
        let render = Arc::new(Mutex::new(Some(render)));
        match shared.ask_once(&once, policy, &keys, subject, cost, render).await {
            Ok(Checked::Decided(answer)) => Ok(answer),
            Ok(Checked::Stale(_)) => unreachable!("a policy stored nowhere is of no epoch"),
            Err(error) => shared
                .answer_without_store(policy, subject, cost, Intent::Spend, error)
                .map(OnceAnswer::Fresh),
        }
    }
}

impl Shared {
    async fn ask_once(
        &self,
        once: &OnceKey,
        policy: &Arc<Compiled>,
        keys: &Keys<'_>,
        subject: Attributes<'_>,
        cost: u32,
        render: Render<impl FnOnce(&Answer) -> Vec<u8> + Send + 'static>,
    ) -> Result<Checked<OnceAnswer<Answer>>, Error> {
        let cost = Cost::new(cost).ok_or(Error::ZeroCost)?;
        let mut claims = Claims::new();
        policy.write_claims(subject, keys, &mut claims);
        let ask = policy.ask(Intent::Spend, cost, &claims);
        let body = {
            let (policy, keys, signer) = (policy.clone(), keys.to_owned(), self.signer.clone());
            move |decided: &_| {
                let render = render.lock().unwrap_or_else(PoisonError::into_inner).take();
                let render = render.expect("one decision is rendered once");
                render(&Answer::new(policy, Clone::clone(decided), &keys, &signer))
            }
        };
        match self.store.check_once(once.clone(), ask.to_owned(), body).await? {
            Checked::Decided(Once::Fresh(decided)) => {
                self.local.store_answered();
                self.watcher.decided(policy, keys, &decided.decision);
                let answer = Answer::new(policy.clone(), decided, keys, &self.signer);
                Ok(Checked::Decided(OnceAnswer::Fresh(answer)))
            }
            Checked::Decided(Once::Replay(record)) => {
                replay(record, &once.fingerprint).map(Checked::Decided)
            }
            Checked::Stale(asked_by) => Ok(Checked::Stale(asked_by)),
        }
    }

    fn once_key(&self, key: IdempotencyKey<'_>, fingerprint: &[u8]) -> OnceKey {
        OnceKey {
            id: sha256(&[key.scope, key.key.as_bytes()]).to_vec(),
            fingerprint: fingerprint.to_vec(),
            expires_at: self.store.now().plus(KEPT),
        }
    }
}

/// What renders an answer: called at most once, by whichever attempt decides.
type Render<F> = Arc<Mutex<Option<F>>>;

fn replay<T>(record: Record, fingerprint: &[u8]) -> Result<OnceAnswer<T>, Error> {
    if record.fingerprint == fingerprint {
        Ok(OnceAnswer::Replay(record.body))
    } else {
        Err(Error::KeyReused)
    }
}

/// The request whatever the order of its attributes.
fn request_fingerprint(policy: &str, subject: Attributes<'_>, cost: u32) -> [u8; 32] {
    let cost = cost.to_le_bytes();
    let mut sorted = subject.to_vec();
    sorted.sort_unstable();
    let mut parts: Vec<&[u8]> = vec![policy.as_bytes(), &cost];
    for (name, value) in &sorted {
        parts.extend([name.as_bytes(), value.as_bytes()]);
    }
    sha256(&parts)
}
