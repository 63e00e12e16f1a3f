//! Mail with an API key: a daily quota that refuses.

mod again;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tollgate::wire::{header_texts, rate_limit_headers};
use tollgate::{Answer, IdempotencyKey, Limiter, OnceAnswer, Outcome};

use crate::error::{Invalid, MailError, Refused, SendError, store_error};
use crate::mail::Mail;
use crate::model::{Account, AccountKey, ApiKey, Content, NewMessage, SendRequest, Sent, Usage};
use crate::policies::key_limiter;
use crate::queue::{Inserted, MessageRecord, NotWritten, derived_id};
use crate::secrets;
use crate::validate;
use again::Given;

const MAX_SUBJECT_CHARS: usize = 256;

/// What an allowed check leaves: kept for replay under an idempotency key.
#[derive(Serialize, Deserialize)]
struct Spent {
    receipt: String,
    remaining: u64,
    #[serde(default)]
    headers: Vec<(String, String)>,
}

impl Spent {
    fn answer(&self, id: String) -> Sent {
        let headers = self.headers.clone();
        Sent { id, remaining: self.remaining, headers, replayed: false }
    }

    fn answer_again(&self, id: String) -> Sent {
        Sent { replayed: true, ..self.answer(id) }
    }
}

impl Mail {
    /// The key with this secret, if it may be used.
    pub async fn usable_key(&self, secret: &str) -> Result<ApiKey, SendError> {
        let hash = secrets::hash(secret);
        let found = self.inner.queue.key_of_hash(&hash).await?;
        match found.filter(|(_, stored)| stored.ct_eq(&hash).into()) {
            Some((key, _)) if key.enabled => Ok(key),
            Some(_) => Err(SendError::DisabledKey),
            None => Err(SendError::UnknownKey),
        }
    }

    /// Queues a message at the cost of one unit per recipient, all or nothing. Everything is
    /// checked before quota is spent; what is answered is durable. With an idempotency key the
    /// same message again is answered the same and neither counted nor sent twice; without one, a
    /// crash between spending and queueing leaves the quota spent, and so does storage that does
    /// not say whether it kept the message. The key is one that [`Mail::usable_key`] just found: it
    /// is not looked up again. A caller who goes away stops nothing.
    pub async fn send(
        &self,
        key: ApiKey,
        request: SendRequest,
        idempotency_key: Option<&str>,
    ) -> Result<Sent, SendError> {
        let given = idempotency_key.map(|once| Given::new(&request, once));
        let record = match (self.prepare(&key, request).await, &given) {
            (Ok(record), _) => record,
            (Err(error), Some(given)) => {
                return self.answered_before(&key, given).await?.ok_or(error);
            }
            (Err(error), None) => return Err(error),
        };
        let mail = self.clone();
        // In a task of its own: a caller who goes away must not stop it between the two.
        let done =
            tokio::spawn(async move { mail.spend_and_queue(&key, record, given.as_ref()).await });
        done.await.unwrap_or_else(|_| Err(MailError::unavailable("sending stopped early").into()))
    }

    async fn spend_and_queue(
        &self,
        key: &ApiKey,
        mut record: MessageRecord,
        given: Option<&Given>,
    ) -> Result<Sent, SendError> {
        let limiter = key_limiter(&self.inner.gate, key).map_err(SendError::from)?;
        let idempotency_key = given.map(|given| given.idempotency_key.as_str());
        let spent = self.spend(&limiter, key, record.recipients, idempotency_key).await?;
        if let Some(given) = given {
            record.id = derived_id(&spent.receipt);
            record.former_digest =
                Some(std::mem::replace(&mut record.digest, given.digest.clone()));
        }
        record.receipt = Some(spent.receipt.clone());
        let (id, account) = (record.id.clone(), record.account.clone());
        let sent = match self.inner.queue.insert(vec![record], self.now()).await {
            Ok(outcomes) => match outcomes.first() {
                Some(Inserted::New) => spent.answer(id),
                Some(Inserted::Again) => spent.answer_again(id),
                // The check was replayed then, so nothing was spent.
                Some(Inserted::IdTaken) => return Err(SendError::KeyReused),
                Some(Inserted::NoAccount) | None => {
                    if let Some(given) = given
                        && let Some(sent) = self.queued_before(key, &spent, given).await?
                    {
                        return Ok(sent);
                    }
                    self.give_back(&spent.receipt, idempotency_key).await;
                    return Err(no_account(&account).into());
                }
            },
            Err(NotWritten::Surely(error)) => {
                self.give_back(&spent.receipt, idempotency_key).await;
                return Err(error.into());
            }
            // That it is not there now would say nothing: it may come yet, and be sent.
            Err(NotWritten::Perhaps(error)) => return Err(error.into()),
        };
        self.inner.nudges.nudge([account]);
        Ok(sent)
    }

    /// How a key stands. Adds nothing.
    pub async fn usage(&self, secret: &str) -> Result<Usage, SendError> {
        let key = self.usable_key(secret).await?;
        let limiter = key_limiter(&self.inner.gate, &key).map_err(SendError::from)?;
        let answer = limiter.peek(&[("api_key", &key.id)], 1).await;
        let answer = answer.map_err(|error| SendError::Store(store_error(error)))?;
        let standing = answer.decision.limits[0].standing;
        Ok(Usage {
            api_key_id: key.id,
            daily_limit: standing.max,
            emails_sent_today: standing.used,
            emails_remaining: standing.remaining(),
            reset_time: standing.resets_at,
        })
    }

    /// The message as it will be queued. Nothing is spent yet.
    async fn prepare(
        &self,
        key: &ApiKey,
        request: SendRequest,
    ) -> Result<MessageRecord, SendError> {
        let inner = &self.inner;
        let account_id = request.account_id.clone().unwrap_or_else(|| key.account_id.clone());
        let account_key = AccountKey::new(&key.tenant_id, account_id);
        let Some(account) = inner.queue.account(&account_key).await? else {
            return Err(no_account(&account_key).into());
        };
        let content = content_of(request, &account.account)?;
        let (bytes, max_bytes) =
            (validate::content_bytes(&content), inner.settings.max_message_bytes);
        if bytes > max_bytes {
            return Err(SendError::TooLarge { bytes, max_bytes });
        }
        let message = NewMessage {
            id: format!("msg_{}{}", secrets::random_id()?, secrets::random_id()?),
            tenant_id: key.tenant_id.clone(),
            account_id: account_key.account_id,
            content,
            priority: NewMessage::DEFAULT_PRIORITY,
            deferred_until: None,
            batch_code: None,
        };
        validate::message(message, &inner.settings).map_err(|mut invalid| {
            if invalid.field == "body" {
                invalid.field = "text".into();
            }
            SendError::Invalid(invalid)
        })
    }

    async fn spend(
        &self,
        limiter: &Limiter,
        key: &ApiKey,
        recipients: u32,
        idempotency_key: Option<&str>,
    ) -> Result<Spent, SendError> {
        let subject = [("api_key", key.id.as_str())];
        let failed = |error| match error {
            tollgate::Error::KeyReused => SendError::KeyReused,
            other => SendError::Store(store_error(other)),
        };
        let answer = match idempotency_key {
            None => limiter.check(&subject, recipients).await.map_err(failed)?,
            Some(given) => {
                let scope = format!("mail send\0{}", key.id);
                let once = IdempotencyKey { scope: scope.as_bytes(), key: given };
                let render = |answer: &Answer| {
                    serde_json::to_vec(&spent(answer)).expect("texts are always JSON")
                };
                let answered = limiter.check_once(once, &subject, recipients, render).await;
                match answered.map_err(failed)? {
                    OnceAnswer::Fresh(answer) => answer,
                    OnceAnswer::Replay(body) => {
                        return serde_json::from_slice(&body).map_err(|error| {
                            MailError::unavailable(format!("a record cannot be read: {error}"))
                                .into()
                        });
                    }
                }
            }
        };
        let standing = answer.decision.limits[0].standing;
        match answer.decision.outcome {
            Outcome::Allowed => Ok(spent(&answer)),
            Outcome::NeverFits => {
                Err(SendError::NeverFits { requested: u64::from(recipients), limit: standing.max })
            }
            Outcome::Refused { retry_at } => Err(SendError::Refused(Refused {
                current: standing.used,
                requested: u64::from(recipients),
                limit: standing.max,
                retry_after_secs: answer.decision.retry_after_secs().unwrap_or(1),
                retry_at,
                headers: header_texts(&rate_limit_headers(&answer)),
            })),
        }
    }

    /// Under an idempotency key the spend is recorded for the retry that will need it, and stays.
    async fn give_back(&self, receipt: &str, idempotency_key: Option<&str>) {
        if idempotency_key.is_none()
            && let Err(error) = self.inner.gate.refund(receipt).await
        {
            tracing::warn!(%error, "quota of a message that was not queued stays spent");
        }
    }
}

fn spent(answer: &Answer) -> Spent {
    Spent {
        receipt: answer.receipt.clone().unwrap_or_default(),
        remaining: answer.decision.limits.first().map_or(0, |limit| limit.standing.remaining()),
        headers: header_texts(&rate_limit_headers(answer)),
    }
}

fn content_of(request: SendRequest, account: &Account) -> Result<Content, Invalid> {
    let SendRequest { to, subject, text, html, mut headers, from, .. } = request;
    if subject.chars().count() > MAX_SUBJECT_CHARS {
        let message = format!("must be at most {MAX_SUBJECT_CHARS} characters long");
        return Err(Invalid::new("subject", message));
    }
    // This request has no fields for them.
    let mut take = |wanted: &str| {
        let name = headers.keys().find(|name| name.eq_ignore_ascii_case(wanted)).cloned();
        name.and_then(|name| headers.remove(&name))
    };
    let (from_header, reply_to) = (take("from"), take("reply-to"));
    let from = from.or(from_header).unwrap_or_else(|| default_from(account));
    // An empty text is none.
    let [text, html] = [text, html].map(|it| it.filter(|it| !it.is_empty()));
    Ok(Content { from, to, reply_to, subject, body: text, html, headers, ..Content::default() })
}

/// The account's address, or its user if that is one, or somebody at its server.
fn default_from(account: &Account) -> String {
    let user = account.user.as_ref().filter(|user| user.contains('@'));
    account.from_address.as_ref().or(user).cloned().unwrap_or_else(|| {
        let is_name =
            account.host.contains(|c: char| c.is_ascii_alphabetic()) && !account.host.contains(':');
        format!("no-reply@{}", if is_name { &account.host } else { "localhost" })
    })
}

fn no_account(key: &AccountKey) -> Invalid {
    let message = format!("{:?} is no account of tenant {:?}", key.account_id, key.tenant_id);
    Invalid::new("account_id", message)
}

impl From<MailError> for SendError {
    fn from(error: MailError) -> Self {
        match error {
            MailError::Invalid(invalid) => Self::Invalid(invalid),
            MailError::Store(error) => Self::Store(error),
            other => match MailError::unavailable(other.to_string()) {
                MailError::Store(error) => Self::Store(error),
                _ => unreachable!("an unavailable store is a store error"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Tollgate;

    use super::*;
    use crate::model::{NewAccount, NewApiKey, NewTenant, Selection};
    use crate::queue::{Finish, Lease, Outcome};
    use crate::settings::MailSettings;

    async fn mail_with_key() -> (Mail, String) {
        let gate = Tollgate::open("memory:").await.unwrap();
        let mail = Mail::open(gate, "memory:", MailSettings::default()).await.unwrap();
        let tenant = NewTenant { id: "acme".into(), ..NewTenant::default() };
        mail.put_tenant(tenant).await.unwrap();
        let account = NewAccount::new(AccountKey::new("acme", "main"), "127.0.0.1", 25);
        mail.put_account(account).await.unwrap();
        let new = NewApiKey {
            tenant_id: "acme".into(),
            account_id: "main".into(),
            name: "test".into(),
            daily_limit: 10,
            timezone: "UTC".into(),
        };
        let secret = mail.create_key(new).await.unwrap().1;
        (mail, secret)
    }

    fn request() -> SendRequest {
        SendRequest {
            to: vec!["a@example.org".into(), "b@example.org".into()],
            text: Some("hello".into()),
            ..SendRequest::default()
        }
    }

    async fn send(
        mail: &Mail,
        secret: &str,
        request: SendRequest,
        once: Option<&str>,
    ) -> Result<Sent, SendError> {
        mail.send(mail.usable_key(secret).await?, request, once).await
    }

    #[tokio::test]
    async fn a_retry_queues_what_a_crash_kept_from_being_queued() {
        let (mail, secret) = mail_with_key().await;
        let key = mail.usable_key(&secret).await.unwrap();
        let limiter = key_limiter(&mail.inner.gate, &key).unwrap();
        // As far as it got before the crash.
        mail.spend(&limiter, &key, 2, Some("once")).await.unwrap();
        let sent = send(&mail, &secret, request(), Some("once")).await.unwrap();
        assert_eq!(sent.remaining, 8);
        assert_eq!(mail.usage(&secret).await.unwrap().emails_sent_today, 2);
        assert_eq!(mail.status(None).await.unwrap().pending, 1);
    }

    #[tokio::test]
    async fn a_retry_of_what_a_version_before_queued_is_known() {
        let (mail, secret) = mail_with_key().await;
        let key = mail.usable_key(&secret).await.unwrap();
        let limiter = key_limiter(&mail.inner.gate, &key).unwrap();
        let spent = mail.spend(&limiter, &key, 2, Some("once")).await.unwrap();
        let mut record = mail.prepare(&key, request()).await.unwrap();
        record.id = derived_id(&spent.receipt);
        record.receipt = Some(spent.receipt);
        let id = record.id.clone();
        mail.inner.queue.insert(vec![record], mail.now()).await.unwrap();
        assert_eq!(send(&mail, &secret, request(), Some("once")).await.unwrap().id, id);
        assert_eq!(mail.status(None).await.unwrap().pending, 1);
    }

    #[tokio::test]
    async fn a_retry_does_not_send_what_was_removed_meanwhile() {
        let (mail, secret) = mail_with_key().await;
        let sent = send(&mail, &secret, request(), Some("once")).await.unwrap();
        let selection = Selection { tenant_id: "acme".into(), ..Selection::default() };
        assert_eq!(mail.delete_messages(&selection).await.unwrap(), 1);
        let again = send(&mail, &secret, request(), Some("once")).await.unwrap();
        assert_eq!(again, Sent { replayed: true, ..sent });
        let other = SendRequest { text: Some("another".into()), ..request() };
        let reused = send(&mail, &secret, other, Some("once")).await;
        assert!(matches!(reused, Err(SendError::KeyReused)), "{reused:?}");
        assert_eq!(mail.status(None).await.unwrap().pending, 0);
        assert_eq!(mail.usage(&secret).await.unwrap().emails_sent_today, 0);
    }

    #[tokio::test]
    async fn what_was_deleted_is_deleted_also_while_no_quota_can_be_given_back() {
        let (mail, secret) = mail_with_key().await;
        send(&mail, &secret, request(), None).await.unwrap();
        mail.inner.gate.close();
        let selection = Selection { tenant_id: "acme".into(), ..Selection::default() };
        assert_eq!(mail.delete_messages(&selection).await.unwrap(), 1);
        assert_eq!(mail.status(None).await.unwrap().pending, 0);
        assert_eq!(mail.inner.queue.refunds_due(9).await.unwrap().len(), 1, "it is owed");
    }

    #[tokio::test]
    async fn a_final_failure_gives_its_quota_back_once() {
        let (mail, secret) = mail_with_key().await;
        send(&mail, &secret, request(), None).await.unwrap();
        send(&mail, &secret, request(), None).await.unwrap();
        let inner = &mail.inner;
        let (now, account) = (mail.now(), AccountKey::new("acme", "main"));
        let lease = Lease { instance: "me", now, until: tollgate::Instant::MAX };
        let claims = inner.queue.claim(&account, lease, 1).await.unwrap().unwrap();
        let finish = Finish {
            claimed: &claims.messages[0],
            instance: "me",
            started_at: now,
            finished_at: now,
            smtp_code: Some(550),
            smtp_text: "no such user".into(),
            outcome: Outcome::Failed { reason: "no such user".into() },
        };
        inner.queue.finish(&finish).await.unwrap();
        inner.queue.finish(&finish).await.unwrap();
        assert_eq!(inner.settle_refunds().await.unwrap(), 1);
        assert_eq!(inner.settle_refunds().await.unwrap(), 0);
        assert_eq!(mail.usage(&secret).await.unwrap().emails_sent_today, 2);
    }
}
