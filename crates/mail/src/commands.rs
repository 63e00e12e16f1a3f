//! The queue from outside: adding messages, commands on them, listing, counts.

use std::collections::HashSet;
use std::time::Duration;

use tollgate::Instant;

use crate::chunks::in_chunks;
use crate::error::MailError;
use crate::mail::Mail;
use crate::model::{
    AccountKey, Added, Attempt, Counts, MessageQuery, MessageRow, NewMessage, Rejected,
    RelayStatus, Selection,
};
use crate::queue::Inserted;
use crate::validate;

impl Mail {
    /// Queues messages. Each is judged by itself; those taken are durable when this answers.
    pub async fn add_messages(&self, messages: Vec<NewMessage>) -> Result<Added, MailError> {
        let inner = &self.inner;
        let mut added = Added::default();
        let mut records = Vec::with_capacity(messages.len());
        for message in messages {
            let id = message.id.clone();
            match validate::message(message, &inner.settings) {
                Ok(record) => records.push(record),
                Err(invalid) => added.rejected.push(Rejected { id, reason: invalid.to_string() }),
            }
        }
        if records.is_empty() {
            return Ok(added);
        }
        let names: Vec<(AccountKey, String)> =
            records.iter().map(|record| (record.account.clone(), record.id.clone())).collect();
        let outcomes = inner.queue.insert(records, self.now()).await?;
        let mut accounts = Vec::new();
        let mut counted = HashSet::new();
        for (outcome, (account, id)) in outcomes.into_iter().zip(names) {
            let reason = match outcome {
                Inserted::New => {
                    added.queued += 1;
                    counted.insert((account.tenant_id.clone(), id));
                    accounts.push(account);
                    continue;
                }
                // There since an earlier call, as a caller that tries again wants to hear; but twice
                // in one call is one message.
                Inserted::Again => {
                    added.queued += u64::from(!counted.contains(&(account.tenant_id, id)));
                    continue;
                }
                Inserted::IdTaken => "id already used by another message".to_owned(),
                Inserted::NoAccount => format!(
                    "account_id {:?} is no account of tenant {:?}",
                    account.account_id, account.tenant_id
                ),
            };
            added.rejected.push(Rejected { id, reason });
        }
        inner.nudges.nudge(accounts);
        Ok(added)
    }

    /// Tries deferred messages now instead of later. Limits hold all the same. How many were
    /// deferred by themselves.
    pub async fn run_now(&self, selection: &Selection) -> Result<u64, MailError> {
        self.known_tenant(&selection.tenant_id).await?;
        let moved = self.inner.queue.run_now(selection).await?;
        self.inner.nudges.nudge(moved.accounts);
        Ok(moved.messages)
    }

    /// Holds a tenant's messages, or those of one batch, also those that are added later. How many
    /// wait.
    pub async fn suspend(
        &self,
        tenant_id: &str,
        batch_code: Option<&str>,
    ) -> Result<u64, MailError> {
        self.known_tenant(tenant_id).await?;
        self.inner.queue.suspend(tenant_id, batch_code).await
    }

    /// Lets them go. How many there were.
    pub async fn activate(
        &self,
        tenant_id: &str,
        batch_code: Option<&str>,
    ) -> Result<u64, MailError> {
        self.known_tenant(tenant_id).await?;
        let activated = self.inner.queue.activate(tenant_id, batch_code, self.now()).await?;
        self.inner.nudges.nudge([]);
        Ok(activated)
    }

    /// Deletes messages, but those being sent at this moment. Quota of unsent ones is given back,
    /// later if it cannot be now. How many.
    pub async fn delete_messages(&self, selection: &Selection) -> Result<u64, MailError> {
        self.known_tenant(&selection.tenant_id).await?;
        let queue = &self.inner.queue;
        let delete = |limit| queue.delete_messages(selection, self.now(), limit);
        let deleted = in_chunks(delete).await?;
        loop {
            match self.inner.settle_refunds().await {
                Ok(0) => return Ok(deleted),
                Ok(_) => {}
                // They are gone all the same, and what is owed is noted.
                Err(error) => {
                    tracing::warn!(%error, "quota of deleted messages is given back later");
                    return Ok(deleted);
                }
            }
        }
    }

    /// Removes messages that were sent, or failed, longer ago than this. Of one tenant or of all.
    /// How many.
    pub async fn cleanup_messages(
        &self,
        tenant_id: Option<&str>,
        older_than: Duration,
    ) -> Result<u64, MailError> {
        if let Some(id) = tenant_id {
            self.known_tenant(id).await?;
        }
        let micros = i64::try_from(older_than.as_micros()).unwrap_or(i64::MAX);
        let now = self.now();
        let before = Instant::from_micros(now.as_micros().saturating_sub(micros));
        in_chunks(|limit| self.inner.queue.cleanup(tenant_id, before, now, limit)).await
    }

    /// A page of messages in the order they came, and the cursor of the next, if there may be one.
    pub async fn messages(
        &self,
        query: &MessageQuery,
    ) -> Result<(Vec<MessageRow>, Option<String>), MailError> {
        let after = validate::query(query)?;
        self.known_tenant(&query.tenant_id).await?;
        let rows = self.inner.queue.messages(query, after, self.now()).await?;
        let full = rows.len() as u64 >= u64::from(query.limit);
        let cursor = rows.last().filter(|_| full).map(|(seq, _)| seq.to_string());
        Ok((rows.into_iter().map(|(_, row)| row).collect(), cursor))
    }

    /// One message.
    pub async fn message(&self, tenant_id: &str, id: &str) -> Result<MessageRow, MailError> {
        let mut query = MessageQuery::of_tenant(tenant_id);
        query.id = Some(id.to_owned());
        let rows = self.inner.queue.messages(&query, 0, self.now()).await?;
        rows.into_iter().next().map(|(_, row)| row).ok_or_else(|| {
            MailError::NotFound(format!("tenant {tenant_id:?} has no message {id:?}"))
        })
    }

    /// The attempts to send one message, in order.
    pub async fn attempts(
        &self,
        tenant_id: &str,
        message_id: &str,
    ) -> Result<Vec<Attempt>, MailError> {
        self.inner.queue.attempts(tenant_id, message_id).await
    }

    /// Every account with its counts, zeros included. Cheap however long the queue is.
    pub async fn counts(&self) -> Result<Vec<Counts>, MailError> {
        self.inner.queue.counts(None, self.now()).await
    }

    /// The relay at a glance: of one tenant, or of all.
    pub async fn status(&self, tenant_id: Option<&str>) -> Result<RelayStatus, MailError> {
        let tenants = match tenant_id {
            Some(id) => {
                self.known_tenant(id).await?;
                1
            }
            None => self.inner.queue.tenants().await?.len() as u64,
        };
        let counts = self.inner.queue.counts(tenant_id, self.now()).await?;
        let mut status =
            RelayStatus { tenants, accounts: counts.len() as u64, ..RelayStatus::default() };
        for count in &counts {
            status.sent += count.sent;
            status.errors += count.errors;
            status.rate_limited += count.rate_limited;
            status.pending += count.pending;
            status.deferred += count.deferred;
            status.suspended += count.suspended;
        }
        Ok(status)
    }

    async fn known_tenant(&self, id: &str) -> Result<(), MailError> {
        self.tenant(id).await.map(drop)
    }
}
