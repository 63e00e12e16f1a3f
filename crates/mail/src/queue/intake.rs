//! Messages into the queue.

use std::collections::HashMap;

use tollgate::Instant;

use super::db::{Db, values};
use super::records::{Inserted, MessageRecord};
use super::tally::{State, Tally};
use crate::error::MailError;
use crate::model::AccountKey;

pub(super) async fn insert(
    db: &Db<'_>,
    messages: &[MessageRecord],
    now: Instant,
) -> Result<Vec<Inserted>, MailError> {
    let mut known = Known::default();
    let mut tally = Tally::default();
    let mut outcomes = Vec::with_capacity(messages.len());
    for message in messages {
        if !known.account(db, &message.account).await? {
            outcomes.push(Inserted::NoAccount);
            continue;
        }
        let held = known.is_held(db, message).await?;
        let state = match message.deferred_until {
            _ if held => State::Suspended,
            Some(at) if at > now => State::Deferred,
            _ => State::Waiting,
        };
        let outcome = insert_one(db, message, state, now).await?;
        if outcome == Inserted::New {
            tally.came(&message.account, state);
        }
        outcomes.push(outcome);
    }
    tally.write(db).await?;
    Ok(outcomes)
}

async fn insert_one(
    db: &Db<'_>,
    message: &MessageRecord,
    state: State,
    now: Instant,
) -> Result<Inserted, MailError> {
    let AccountKey { tenant_id, account_id } = &message.account;
    let row = db
        .row(
            "insert into mail_message (tenant_id, id, account_id, state, priority, due_at, \
                 batch_code, recipients, created_at, receipt, digest) \
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) \
             on conflict (tenant_id, id) do nothing returning seq",
            values![
                tenant_id,
                &message.id,
                account_id,
                state.number(),
                i64::from(message.priority),
                message.deferred_until,
                &message.batch_code,
                message.recipients,
                now,
                &message.receipt,
                message.digest.clone(),
            ],
        )
        .await?;
    let Some(row) = row else { return was_there(db, message).await };
    db.change(
        "insert into mail_content (message_seq, bytes) values (?1, ?2)",
        values![row.int(0), message.content.clone()],
    )
    .await?;
    Ok(Inserted::New)
}

async fn was_there(db: &Db<'_>, message: &MessageRecord) -> Result<Inserted, MailError> {
    let sql = "select digest from mail_message where tenant_id = ?1 and id = ?2";
    let row = db.row(sql, values![&message.account.tenant_id, &message.id]).await?;
    let same = row.and_then(|row| row.opt_bytes(0)).is_some_and(|it| it == message.digest);
    Ok(if same { Inserted::Again } else { Inserted::IdTaken })
}

/// What was looked up for the messages before: most of a batch are of one account.
#[derive(Default)]
struct Known {
    accounts: HashMap<AccountKey, bool>,
    batches: HashMap<(String, String), bool>,
}

impl Known {
    /// Whether the account is there; it stays so until the transaction ends.
    async fn account(&mut self, db: &Db<'_>, key: &AccountKey) -> Result<bool, MailError> {
        if let Some(known) = self.accounts.get(key) {
            return Ok(*known);
        }
        let sql = "select 1 from mail_account where tenant_id = ?1 and id = ?2 [stays]";
        let found = db.row(sql, values![&key.tenant_id, &key.account_id]).await?.is_some();
        self.accounts.insert(key.clone(), found);
        Ok(found)
    }

    async fn is_held(&mut self, db: &Db<'_>, message: &MessageRecord) -> Result<bool, MailError> {
        let Some(batch) = &message.batch_code else { return Ok(false) };
        let key = (message.account.tenant_id.clone(), batch.clone());
        if let Some(known) = self.batches.get(&key) {
            return Ok(*known);
        }
        // Against somebody who suspends this batch at this moment: they wait for us, or we for them.
        let lock = format!("mail batch {}\n{batch}", key.0);
        db.rows("select [share ?1]", values![lock]).await?;
        let sql = "select 1 from mail_suspended_batch where tenant_id = ?1 and batch_code = ?2";
        let held = db.row(sql, values![&key.0, batch]).await?.is_some();
        self.batches.insert(key, held);
        Ok(held)
    }
}
