//! Messages into the queue.

use std::collections::HashMap;

use tollgate::{Instant, StoreError, StoreErrorKind};

use super::db::{Db, Row, Value, values};
use super::records::{Inserted, MessageRecord};
use super::removed;
use super::tally::{State, Tally};
use crate::error::MailError;
use crate::model::AccountKey;

const INSERT: &str = "insert into mail_message (tenant_id, id, account_id, state, priority, due_at, \
         batch_code, recipients, created_at, receipt, digest) \
     values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) \
     on conflict (tenant_id, id) do nothing returning seq";
const DIGEST: &str = "select digest from mail_message where tenant_id = ?1 and id = ?2";
/// How often somebody else may add and delete the same message meanwhile.
const INSERT_TRIES: usize = 5;

pub(super) async fn insert(
    db: &Db<'_>,
    messages: &[MessageRecord],
    now: Instant,
) -> Result<Vec<Inserted>, MailError> {
    let mut outcomes = vec![Inserted::NoAccount; messages.len()];
    let mut known = Known::default();
    // Each with its place among all, in the order given: that is the order they are sent in.
    let mut placed = Vec::with_capacity(messages.len());
    for (place, message) in messages.iter().enumerate() {
        if known.account(db, &message.account).await? {
            placed.push((place, message, known.state(db, message, now).await?));
        }
    }
    let values: Vec<_> = placed.iter().map(|(_, it, state)| row_of(it, *state, now)).collect();
    let rows = db.row_each(INSERT, &values).await?;
    let mut digests = digests(db, placed.iter().map(|(_, it, _)| *it).zip(&rows)).await?;
    let mut tally = Tally::default();
    let mut contents = Vec::with_capacity(rows.len());
    for (((place, message, state), row), values) in placed.into_iter().zip(rows).zip(&values) {
        let row = match row {
            Some(row) => Ok(row),
            None => was_there(db, message, digests.next().flatten(), values).await?,
        };
        let row = match row {
            Ok(row) => removed::unless_removed(db, message, row).await?,
            there => there,
        };
        outcomes[place] = match row {
            Ok(row) => {
                contents.push(values![row.int(0), message.content.clone()].to_vec());
                tally.came(&message.account, state);
                Inserted::New
            }
            Err(outcome) => outcome,
        };
    }
    let sql = "insert into mail_content (message_seq, bytes) values (?1, ?2)";
    db.row_each(sql, &contents).await?;
    tally.write(db).await?;
    Ok(outcomes)
}

fn row_of(message: &MessageRecord, state: State, now: Instant) -> Vec<Value> {
    let AccountKey { tenant_id, account_id } = &message.account;
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
    ]
    .to_vec()
}

/// Of those messages that have no row now because their ids were there already, in order, the
/// digests of the others: looked up together, as a batch that is tried again has many.
async fn digests<'a>(
    db: &Db<'_>,
    inserted: impl Iterator<Item = (&'a MessageRecord, &'a Option<Row>)>,
) -> Result<std::vec::IntoIter<Option<Row>>, MailError> {
    let again = inserted.filter(|(_, row)| row.is_none());
    let names: Vec<_> = again.map(|(message, _)| name_of(message)).collect();
    Ok(db.row_each(DIGEST, &names).await?.into_iter())
}

fn name_of(message: &MessageRecord) -> Vec<Value> {
    values![&message.account.tenant_id, &message.id].to_vec()
}

/// What became of a message whose id was there already, beside one of this digest; or its row, if
/// the other is gone meanwhile.
async fn was_there(
    db: &Db<'_>,
    message: &MessageRecord,
    mut found: Option<Row>,
    values: &[Value],
) -> Result<Result<Row, Inserted>, MailError> {
    for _ in 0..INSERT_TRIES {
        if let Some(digest) = found.and_then(|row| row.opt_bytes(0)) {
            return Ok(Err(Inserted::beside(&digest, message)));
        }
        if let Some(row) = db.row(INSERT, values).await? {
            return Ok(Ok(row));
        }
        found = db.row(DIGEST, &name_of(message)).await?;
    }
    let message = format!("the message {:?} comes and goes: try again", message.id);
    Err(StoreError::new(StoreErrorKind::Contended, message).into())
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

    /// Where the message begins.
    async fn state(
        &mut self,
        db: &Db<'_>,
        message: &MessageRecord,
        now: Instant,
    ) -> Result<State, MailError> {
        let held = self.is_held(db, message).await?;
        Ok(match message.deferred_until {
            _ if held => State::Suspended,
            Some(at) if at > now => State::Deferred,
            _ => State::Waiting,
        })
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
