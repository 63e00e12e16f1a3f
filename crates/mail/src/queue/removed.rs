//! What stays of a removed message while a retry of it may come: so much that it is not sent again.

use tollgate::{Instant, Span};

use super::db::{Db, Row, values};
use super::records::{Inserted, MessageRecord};
use crate::error::MailError;

/// An hour more than the gate remembers an idempotency key: a message comes after its key, but its
/// clock may be another instance's.
const KEPT: Span = Span::from_secs(25 * 3600);

/// Before the messages of a list (JSON) are removed, in the same transaction. Which of them came
/// with an idempotency key is not kept; only those that an API key paid for can have.
pub(super) async fn note(db: &Db<'_>, seqs: &str, now: Instant) -> Result<(), MailError> {
    let sql = "insert into mail_removed (tenant_id, id, digest, until) \
         select tenant_id, id, digest, created_at + ?2 from mail_message \
         where seq in [ints ?1] and receipt is not null and created_at + ?2 > ?3 \
         on conflict do nothing";
    db.change(sql, values![seqs, KEPT.as_micros(), now]).await.map(drop)
}

/// The row just made, or what became of the message if it was there once and was removed.
///
/// Asked after the row was made: whoever removed the earlier one committed before that, so their
/// note is seen, however close the two came together.
pub(super) async fn unless_removed(
    db: &Db<'_>,
    message: &MessageRecord,
    row: Row,
) -> Result<Result<Row, Inserted>, MailError> {
    if !message.is_under_idempotency_key() {
        return Ok(Ok(row));
    }
    let sql = "select digest from mail_removed where tenant_id = ?1 and id = ?2";
    let found = db.row(sql, values![&message.account.tenant_id, &message.id]).await?;
    let Some(digest) = found.and_then(|row| row.opt_bytes(0)) else { return Ok(Ok(row)) };
    db.change("delete from mail_message where seq = ?1", values![row.int(0)]).await?;
    Ok(Err(Inserted::beside(&digest, message)))
}

/// Of a message that is there, or was removed not long ago.
pub(super) async fn digest(
    db: &Db<'_>,
    tenant_id: &str,
    id: &str,
) -> Result<Option<Vec<u8>>, MailError> {
    let sql = "select digest from mail_message where tenant_id = ?1 and id = ?2 union all \
         select digest from mail_removed where tenant_id = ?1 and id = ?2 limit 1";
    Ok(db.row(sql, values![tenant_id, id]).await?.and_then(|row| row.opt_bytes(0)))
}

/// Forgets up to `limit` whose time is over. How many.
pub(super) async fn forget(db: &Db<'_>, now: Instant, limit: u32) -> Result<u64, MailError> {
    let sql = "delete from mail_removed where (tenant_id, id) in ( \
             select tenant_id, id from mail_removed where until < ?1 limit ?2 [skip locked])";
    db.change(sql, values![now, limit]).await
}
