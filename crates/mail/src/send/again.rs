//! A send that comes again under its idempotency key, when it could not be accepted any more: its
//! account was changed or deleted meanwhile, or the settings were. What was accepted once is
//! answered the same. Nothing is spent or queued here.

use super::Spent;
use crate::error::SendError;
use crate::mail::Mail;
use crate::model::{ApiKey, Content, SendRequest, Sent};
use crate::policies::key_limiter;
use crate::queue::derived_id;
use crate::validate;

/// What tells a request from another one under the same key: all as it was given, nothing of what
/// the account adds to it.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) idempotency_key: String,
    pub(super) digest: Vec<u8>,
    to: Vec<String>,
}

impl Given {
    pub(super) fn new(request: &SendRequest, idempotency_key: &str) -> Self {
        Self {
            idempotency_key: idempotency_key.to_owned(),
            digest: validate::request_digest(request),
            to: request.to.clone(),
        }
    }
}

impl Mail {
    /// The answer from before, if there is one.
    pub(super) async fn answered_before(
        &self,
        key: &ApiKey,
        given: &Given,
    ) -> Result<Option<Sent>, SendError> {
        if given.to.is_empty() || given.to.len() > self.inner.settings.max_recipients {
            return Ok(None);
        }
        let named = Content { to: given.to.clone(), ..Content::default() };
        // A limit that nothing fits: a record is given back, and without one nothing is spent.
        let nothing = ApiKey { daily_limit: 0, ..key.clone() };
        let limiter = key_limiter(&self.inner.gate, &nothing).map_err(SendError::from)?;
        let once = Some(given.idempotency_key.as_str());
        match self.spend(&limiter, key, named.recipient_count(), once).await {
            Ok(spent) => self.queued_before(key, &spent, given).await,
            Err(SendError::NeverFits { .. } | SendError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The answer to what was spent before, if its message was queued then.
    pub(super) async fn queued_before(
        &self,
        key: &ApiKey,
        spent: &Spent,
        given: &Given,
    ) -> Result<Option<Sent>, SendError> {
        let id = derived_id(&spent.receipt);
        match self.inner.queue.digest(&key.tenant_id, &id).await? {
            Some(digest) if digest == given.digest => Ok(Some(spent.answer_again(id))),
            Some(_) => Err(SendError::KeyReused),
            None => Ok(None),
        }
    }
}
