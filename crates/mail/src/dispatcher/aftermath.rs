//! After an attempt: what is to become of its message and its account, noted, and told to all who
//! wait for it.

use std::time::Duration;

use tollgate::{Instant, StoreErrorKind};

use super::delays::{after, growing};
use super::turn::{Attempt, Context, pause};
use crate::error::MailError;
use crate::model::{AccountKey, Content};
use crate::queue::{Finish, Finished, Outcome, Pause, PauseCause, PauseScope};
use crate::secrets;
use crate::smtp::{Failure, Kind, Reply, Stage};

/// Between two tries to note an outcome, or to look up what it depends on.
const NOTE_AGAIN: Duration = Duration::from_millis(200);

impl Context {
    pub(super) async fn sent(
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
        self.throttles.over(&claimed.account);
        self.note(&finish).await?;
        self.reported.notify_one();
        Ok(())
    }

    pub(super) async fn failed(
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
        self.expect(&outcome);
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
        }
        self.rest_server(attempt, &failure, &finish.outcome).await
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
        let answered = failure.stage != Stage::Connecting && failure.code.is_some();
        if answered && failure.kind != Kind::Throttled {
            self.throttles.over(&claimed.account);
        }
        if failure.kind == Kind::Permanent {
            return Ok(Outcome::Failed { reason });
        }
        let now = self.inner.gate.now();
        let end = after(self.aging_since(attempt, failure).await?, settings.max_age);
        if now >= end {
            let reason = format!("given up after {} attempts: {reason}", claimed.attempts);
            return Ok(Outcome::Failed { reason });
        }
        let delay = growing(settings.retry_base, settings.retry_max, claimed.attempts);
        if failure.kind == Kind::Throttled {
            let pause = self.throttle(attempt, end);
            // Behind the pause, so that another message finds out whether it is over: the server
            // may have meant this one only.
            let at = after(pause.until, delay).min(end);
            return Ok(Outcome::Throttled { pause, at, reason });
        }
        Ok(Outcome::Retry { at: after(now, delay).min(end), reason })
    }

    /// The pause that a server asked for, which ends with the message's age at the latest: then it
    /// is tried for the last time.
    fn throttle(&self, attempt: &Attempt<'_>, end: Instant) -> Pause {
        let settings = &self.inner.settings;
        let Attempt { sender, claimed, started_at, .. } = attempt;
        let until = self.throttles.pause(&claimed.account, *started_at, |in_a_row| {
            let delay = growing(settings.throttle_base, settings.retry_max, in_a_row);
            after(self.inner.gate.now(), delay).min(end)
        });
        pause(sender, until, PauseScope::All, PauseCause::Server)
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
        let look_up = || self.inner.queue.attempts(tenant_id, &claimed.id);
        let log = self.persist(look_up).await?;
        let first = log.first().map_or(*started_at, |first| first.started_at);
        let mut silent_since = self.silent_since.lock();
        if failure.stage != Stage::Connecting {
            silent_since.remove(&claimed.account);
            return Ok(first);
        }
        let silent = *silent_since.entry(claimed.account.clone()).or_insert(*started_at);
        Ok(first.min(silent.max(claimed.created_at)))
    }

    /// Notes when there is something to do again.
    fn expect(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Retry { at, .. } => self.alarms.look_at(*at),
            Outcome::Throttled { pause, at, .. } => {
                self.expect_pause(pause);
                self.alarms.look_at(*at);
            }
            Outcome::Sent | Outcome::Failed { .. } | Outcome::RateLimited { .. } => {}
        }
    }

    fn expect_pause(&self, pause: &Pause) {
        let AccountKey { tenant_id, account_id } = &pause.account;
        tracing::warn!(tenant_id, account_id, "the server asks for a pause");
        self.alarms.wake(&pause.account, pause.scope, pause.until);
    }

    /// A server that cannot be talked to, or asks for a pause, is not asked again for each of its
    /// messages.
    async fn rest_server(
        &self,
        attempt: &Attempt<'_>,
        failure: &Failure,
        outcome: &Outcome,
    ) -> Result<(), MailError> {
        let pause = match (failure.kind, outcome) {
            (Kind::Temporary, Outcome::Retry { at, .. }) if failure.stage == Stage::Connecting => {
                pause(attempt.sender, *at, PauseScope::All, PauseCause::Server)
            }
            // That this message ends does not mean that the others may come.
            (Kind::Throttled, Outcome::Failed { .. }) => {
                let pause = self.throttle(attempt, Instant::MAX);
                self.expect_pause(&pause);
                pause
            }
            _ => return Ok(()),
        };
        self.inner.queue.pause_account(&pause).await
    }

    /// Notes an outcome.
    pub(super) async fn note(&self, finish: &Finish<'_>) -> Result<(), MailError> {
        if self.persist(|| self.inner.queue.finish(finish)).await? == Finished::Lost {
            let tenant_id = &finish.claimed.account.tenant_id;
            let message_id = &finish.claimed.id;
            tracing::warn!(tenant_id, message_id, "an attempt outlived its lease");
        }
        Ok(())
    }

    /// Asks storage for what noting an outcome takes, however long it is away: what was sent and is
    /// not noted is sent twice. What is held by this instance meanwhile it does not take for left
    /// behind; whoever stops the dispatcher ends this too.
    async fn persist<T, F: Future<Output = Result<T, MailError>>>(
        &self,
        ask: impl Fn() -> F,
    ) -> Result<T, MailError> {
        let give_up_at = tokio::time::Instant::now() + self.inner.settings.lease;
        let mut is_told = false;
        loop {
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if !is_outage(&error) && tokio::time::Instant::now() >= give_up_at {
                return Err(error);
            }
            if !is_told {
                is_told = true;
                tracing::warn!(%error, "an outcome cannot be noted yet; trying again");
            }
            tokio::time::sleep(NOTE_AGAIN).await;
        }
    }

    /// What follows when a message ended in error.
    pub(super) async fn after_failure(&self) {
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

/// Whether storage may answer otherwise later.
fn is_outage(error: &MailError) -> bool {
    matches!(error, MailError::Store(error) if error.kind() != StoreErrorKind::Corrupt)
}
