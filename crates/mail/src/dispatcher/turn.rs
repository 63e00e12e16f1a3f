//! One turn of one account: claim its next message, ask the limits, send, note what became of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate::Instant;

use super::delays::{after, growing};
use super::scout::Alarms;
use super::sender::{Pace, Sender};
use super::under_way::UnderWay;
use crate::error::MailError;
use crate::mail::Inner;
use crate::model::{AccountKey, Content, LimitBehavior};
use crate::queue::{Claimed, Finish, Finished, Lease, Outcome, Pause, PauseCause, PauseScope};
use crate::secrets;
use crate::smtp::{self, Connection, Delivery, Failure, Identity, Kind, Outgoing, Reply, Stage};

/// The error of a message over a limit of an account that rejects.
const RATE_LIMIT_EXCEEDED: &str = "rate_limit_exceeded";
/// Between two tries to note an outcome.
const NOTE_AGAIN: Duration = Duration::from_millis(200);

/// What all turns share.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) inner: Arc<Inner>,
    pub(super) alarms: Arc<Alarms>,
    pub(super) under_way: Arc<UnderWay>,
    /// Tells the reporter that something became final.
    pub(super) reported: Arc<Notify>,
    /// Makes addresses unreadable in log lines, the same on every instance.
    pub(super) salt: Vec<u8>,
    /// Accounts whose server cannot be talked to, and since when. Of this run only.
    pub(super) silent_since: Mutex<HashMap<AccountKey, Instant>>,
}

/// A turn that is over.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) sender: Option<Arc<Sender>>,
    pub(super) connection: Option<Connection>,
    /// Whether the account may have another message to send now.
    pub(super) more: bool,
}

/// What an attempt was about.
struct Attempt<'a> {
    sender: &'a Sender,
    claimed: &'a Claimed,
    started_at: Instant,
    /// Gives the account's unit back.
    receipt: Option<String>,
}

impl Context {
    /// Gives an account its turn.
    pub(super) async fn turn(&self, key: &AccountKey, mut turn: Turn) -> Turn {
        turn.more = match self.take(key, &mut turn).await {
            Ok(more) => more,
            Err(error) => {
                // The next poll finds it again.
                let AccountKey { tenant_id, account_id } = key;
                tracing::warn!(%error, tenant_id, account_id, "an account waits for its storage");
                false
            }
        };
        turn
    }

    /// Whether there may be more.
    async fn take(&self, key: &AccountKey, turn: &mut Turn) -> Result<bool, MailError> {
        let inner = &self.inner;
        let now = inner.gate.now();
        let until = after(now, inner.settings.lease);
        let lease = Lease { instance: &inner.instance, now, until };
        let Some(claims) = inner.queue.claim(key, lease, 1).await? else { return Ok(false) };
        let Some(claimed) = claims.messages.into_iter().next() else { return Ok(false) };
        let _held = self.under_way.hold(&claimed);
        // Whoever looked for ended leases before it was held read the clock before us: if it was
        // set ahead meanwhile, the message may be somebody else's already.
        if inner.gate.now() >= until {
            self.release(&claimed, None).await?;
            return Ok(false);
        }
        let sender = match self.sender(turn.sender.take(), claims.account_version, key).await {
            Ok(Some(sender)) => sender,
            nothing => {
                self.release(&claimed, None).await?;
                return nothing.map(|_| false);
            }
        };
        turn.sender = Some(sender.clone());
        let kept = turn.connection.take();
        let (more, connection) = self.process(&sender, &claimed, kept).await?;
        turn.connection = connection;
        Ok(more)
    }

    /// The account as it is now. `None`: it is gone.
    async fn sender(
        &self,
        known: Option<Arc<Sender>>,
        version: i64,
        key: &AccountKey,
    ) -> Result<Option<Arc<Sender>>, MailError> {
        match known.filter(|sender| sender.account.version == version) {
            Some(sender) => Ok(Some(sender)),
            None => Ok(Sender::load(&self.inner, key).await?.map(Arc::new)),
        }
    }

    async fn release(&self, claimed: &Claimed, pause: Option<&Pause>) -> Result<(), MailError> {
        let instance = &self.inner.instance;
        self.inner.queue.release(instance, std::slice::from_ref(claimed), pause).await
    }

    /// Asks the limits, and sends if they allow it.
    async fn process(
        &self,
        sender: &Sender,
        claimed: &Claimed,
        kept: Option<Connection>,
    ) -> Result<(bool, Option<Connection>), MailError> {
        let ready = async {
            let content = self.inner.queue.load_content(claimed.seq).await?;
            Ok((content, sender.pace(&self.inner, claimed).await?))
        };
        let (content, pace) = match ready.await {
            Ok(ready) => ready,
            Err(error) => {
                self.release(claimed, None).await?;
                return Err(error);
            }
        };
        match pace {
            Pace::Go { at, receipt } => {
                let attempt = Attempt { sender, claimed, started_at: at, receipt };
                let connection = self.attempt(attempt, content.as_ref(), kept).await?;
                Ok((true, connection))
            }
            Pace::Wait { until, scope, .. }
                if sender.account.limit_behavior == LimitBehavior::Defer =>
            {
                self.defer(sender, claimed, until, scope).await?;
                // Others of it may still go, if only these wait.
                Ok((scope == PauseScope::Ordinary, kept))
            }
            Pace::Wait { at, .. } => {
                self.reject(claimed, at, RATE_LIMIT_EXCEEDED.to_owned()).await?;
                Ok((true, kept))
            }
            Pace::Never { max, at } => {
                let reason = format!(
                    "{RATE_LIMIT_EXCEEDED}: the message counts {} and the account's limit is \
                     {max}, so it can never be sent; split it, or raise the limit",
                    sender.cost(claimed)
                );
                self.reject(claimed, at, reason).await?;
                Ok((true, kept))
            }
        }
    }

    /// The account stops until the limits have room again. Its other messages are not touched.
    async fn defer(
        &self,
        sender: &Sender,
        claimed: &Claimed,
        until: Instant,
        scope: PauseScope,
    ) -> Result<(), MailError> {
        let pause = pause(sender, until, scope, PauseCause::Limit);
        self.release(claimed, Some(&pause)).await?;
        self.alarms.wake(&claimed.account, scope, until);
        let AccountKey { tenant_id, account_id } = &claimed.account;
        let wait_secs = until.whole_secs_since(self.inner.gate.now());
        tracing::info!(tenant_id, account_id, wait_secs, "a limit is reached; the account waits");
        Ok(())
    }

    /// Ends a message that the limits do not let pass.
    async fn reject(
        &self,
        claimed: &Claimed,
        at: Instant,
        reason: String,
    ) -> Result<(), MailError> {
        let AccountKey { tenant_id, account_id } = &claimed.account;
        let message_id = &claimed.id;
        tracing::info!(tenant_id, account_id, message_id, "over a limit; the message is rejected");
        let finish = Finish {
            claimed,
            instance: &self.inner.instance,
            started_at: at,
            finished_at: self.inner.gate.now(),
            smtp_code: None,
            smtp_text: reason.clone(),
            outcome: Outcome::RateLimited { reason },
        };
        self.note(&finish).await?;
        self.after_failure().await;
        Ok(())
    }

    /// Sends, and notes what became of it.
    async fn attempt(
        &self,
        attempt: Attempt<'_>,
        content: Option<&Content>,
        kept: Option<Connection>,
    ) -> Result<Option<Connection>, MailError> {
        let Attempt { sender, claimed, started_at, .. } = &attempt;
        let identity = Identity {
            tenant_id: &claimed.account.tenant_id,
            id: &claimed.id,
            created_at: claimed.created_at,
        };
        let outgoing = match content {
            Some(content) => Outgoing::new(content, identity, *started_at),
            None => Err("the message's content is gone".to_owned()),
        };
        let delivery = match (&sender.server, outgoing) {
            (Ok(server), Ok(outgoing)) => smtp::deliver(server, kept, &outgoing).await,
            (Err(failure), _) => Delivery { result: Err(failure.clone()), connection: None },
            (_, Err(reason)) => {
                let failure = Failure { stage: Stage::Message, ..Failure::permanent(reason) };
                Delivery { result: Err(failure), connection: kept }
            }
        };
        match delivery.result {
            Ok(reply) => self.sent(&attempt, content, reply).await?,
            Err(failure) => self.failed(&attempt, content, failure).await?,
        }
        Ok(delivery.connection)
    }

    async fn sent(
        &self,
        attempt: &Attempt<'_>,
        content: Option<&Content>,
        reply: Reply,
    ) -> Result<(), MailError> {
        let claimed = attempt.claimed;
        let AccountKey { tenant_id, account_id } = &claimed.account;
        let (message_id, attempts, code) = (&claimed.id, claimed.attempts, reply.code);
        let to = self.hashed(content);
        tracing::info!(tenant_id, account_id, message_id, attempts, code, to, "sent");
        let finish = Finish {
            claimed,
            instance: &self.inner.instance,
            started_at: attempt.started_at,
            finished_at: self.inner.gate.now(),
            smtp_code: Some(reply.code),
            smtp_text: reply.text,
            outcome: Outcome::Sent,
        };
        self.silent_since.lock().remove(&claimed.account);
        self.note(&finish).await?;
        self.reported.notify_one();
        Ok(())
    }

    async fn failed(
        &self,
        attempt: &Attempt<'_>,
        content: Option<&Content>,
        failure: Failure,
    ) -> Result<(), MailError> {
        // Before the outcome is noted: whoever is next may need the unit. What was perhaps sent
        // stays counted.
        if let Some(receipt) = attempt.receipt.as_ref().filter(|_| !failure.maybe_sent)
            && let Err(error) = self.inner.gate.refund(receipt).await
        {
            tracing::warn!(%error, "the unit of a failed attempt stays spent");
        }
        let claimed = attempt.claimed;
        let outcome = self.outcome_of(attempt, &failure).await?;
        let AccountKey { tenant_id, account_id } = &claimed.account;
        let (message_id, attempts) = (&claimed.id, claimed.attempts);
        let (code, stage, to) = (failure.code, failure.stage, self.hashed(content));
        let last = matches!(outcome, Outcome::Failed { .. });
        tracing::info!(
            tenant_id,
            account_id,
            message_id,
            attempts,
            code,
            ?stage,
            to,
            last,
            "not sent"
        );
        tracing::debug!(tenant_id, message_id, reason = failure.text, "not sent, because");
        self.expect(claimed, &outcome);
        let finish = Finish {
            claimed,
            instance: &self.inner.instance,
            started_at: attempt.started_at,
            finished_at: self.inner.gate.now(),
            smtp_code: failure.code,
            smtp_text: failure.text.clone(),
            outcome,
        };
        self.note(&finish).await?;
        if last {
            self.after_failure().await;
        } else if failure.stage == Stage::Connecting && failure.kind == Kind::Temporary {
            self.rest_server(attempt, &finish.outcome).await?;
        }
        Ok(())
    }

    /// What is to become of a message that was not sent.
    async fn outcome_of(
        &self,
        attempt: &Attempt<'_>,
        failure: &Failure,
    ) -> Result<Outcome, MailError> {
        let settings = &self.inner.settings;
        let claimed = attempt.claimed;
        let reason = failure.text.clone();
        if failure.kind == Kind::Permanent {
            return Ok(Outcome::Failed { reason });
        }
        let now = self.inner.gate.now();
        let end = after(self.aging_since(attempt, failure).await?, settings.max_age);
        if now >= end {
            let reason = format!("given up after {} attempts: {reason}", claimed.attempts);
            return Ok(Outcome::Failed { reason });
        }
        if failure.kind == Kind::Throttled {
            let delay = growing(settings.throttle_base, settings.retry_max, claimed.attempts);
            let until = after(now, delay);
            let pause = pause(attempt.sender, until, PauseScope::All, PauseCause::Server);
            return Ok(Outcome::Throttled { pause, reason });
        }
        let delay = growing(settings.retry_base, settings.retry_max, claimed.attempts);
        Ok(Outcome::Retry { at: after(now, delay).min(end), reason })
    }

    /// A message ages from its first attempt: it is not its fault how long it had to wait for its
    /// turn. But behind a server that is silent, all that wait age together.
    async fn aging_since(
        &self,
        attempt: &Attempt<'_>,
        failure: &Failure,
    ) -> Result<Instant, MailError> {
        let Attempt { claimed, started_at, .. } = attempt;
        let AccountKey { tenant_id, .. } = &claimed.account;
        let log = self.inner.queue.attempts(tenant_id, &claimed.id).await?;
        let first = log.first().map_or(*started_at, |first| first.started_at);
        let mut silent_since = self.silent_since.lock();
        if failure.stage == Stage::Message {
            silent_since.remove(&claimed.account);
            return Ok(first);
        }
        let silent = *silent_since.entry(claimed.account.clone()).or_insert(*started_at);
        Ok(first.min(silent.max(claimed.created_at)))
    }

    /// Notes when there is something to do again.
    fn expect(&self, claimed: &Claimed, outcome: &Outcome) {
        match outcome {
            Outcome::Retry { at, .. } => self.alarms.look_at(*at),
            Outcome::Throttled { pause, .. } => {
                let AccountKey { tenant_id, account_id } = &claimed.account;
                tracing::warn!(tenant_id, account_id, "the server asks for a pause");
                self.alarms.wake(&claimed.account, pause.scope, pause.until);
            }
            Outcome::Sent | Outcome::Failed { .. } | Outcome::RateLimited { .. } => {}
        }
    }

    /// A server that cannot be talked to is not asked again for each of its messages.
    async fn rest_server(&self, attempt: &Attempt<'_>, outcome: &Outcome) -> Result<(), MailError> {
        let Outcome::Retry { at, .. } = outcome else { return Ok(()) };
        let pause = pause(attempt.sender, *at, PauseScope::All, PauseCause::Server);
        self.inner.queue.pause_account(&pause).await
    }

    /// Notes an outcome, however long storage is away: what was sent and is not noted is sent
    /// twice. After the lease it is somebody else's.
    async fn note(&self, finish: &Finish<'_>) -> Result<(), MailError> {
        let give_up_at = tokio::time::Instant::now() + self.inner.settings.lease;
        loop {
            match self.inner.queue.finish(finish).await {
                Ok(Finished::Noted) => return Ok(()),
                Ok(Finished::Lost) => {
                    let tenant_id = &finish.claimed.account.tenant_id;
                    let message_id = &finish.claimed.id;
                    tracing::warn!(tenant_id, message_id, "an attempt outlived its lease");
                    return Ok(());
                }
                Err(error) if tokio::time::Instant::now() < give_up_at => {
                    tracing::warn!(%error, "an outcome cannot be noted yet; trying again");
                    tokio::time::sleep(NOTE_AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// What follows when a message ended in error.
    async fn after_failure(&self) {
        self.reported.notify_one();
        if let Err(error) = self.inner.settle_refunds().await {
            tracing::warn!(%error, "quota of failed messages is given back later");
        }
    }

    /// The first recipient, unreadable, so that lines about one address can be told together.
    fn hashed(&self, content: Option<&Content>) -> String {
        use sha2::Digest;
        let lists = content.map(|content| [&content.to, &content.cc, &content.bcc]);
        let first = lists.into_iter().flatten().flatten().next().map_or("", String::as_str);
        let digest = sha2::Sha256::new().chain_update(&self.salt).chain_update(first).finalize();
        secrets::hex(&digest[..6])
    }
}

fn pause(sender: &Sender, until: Instant, scope: PauseScope, cause: PauseCause) -> Pause {
    let account = sender.account.key.clone();
    Pause { account, version: sender.account.version, until, scope, cause }
}
