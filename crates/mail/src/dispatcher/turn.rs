//! One turn of one account: claim its next message, ask the limits, send. What follows from that is
//! in `aftermath`.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate::Instant;

use super::delays::after;
use super::scout::Alarms;
use super::sender::{Pace, Sender};
use super::throttles::Throttles;
use super::under_way::UnderWay;
use crate::error::MailError;
use crate::mail::Inner;
use crate::model::{AccountKey, Content, LimitBehavior};
use crate::queue::{Claimed, Finish, Lease, Outcome, Pause, PauseCause, PauseScope};
use crate::smtp::{self, Connection, Delivery, Failure, Identity, Outgoing, Stage};

/// The error of a message over a limit of an account that rejects.
const RATE_LIMIT_EXCEEDED: &str = "rate_limit_exceeded";

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
    pub(super) throttles: Throttles,
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
pub(super) struct Attempt<'a> {
    pub(super) sender: &'a Sender,
    pub(super) claimed: &'a Claimed,
    pub(super) started_at: Instant,
    /// Gives the account's unit back.
    pub(super) receipt: Option<String>,
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
            Ok((content, sender.pace(claimed).await?))
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
}

pub(super) fn pause(
    sender: &Sender,
    until: Instant,
    scope: PauseScope,
    cause: PauseCause,
) -> Pause {
    let account = sender.account.key.clone();
    Pause { account, version: sender.account.version, until, scope, cause }
}
