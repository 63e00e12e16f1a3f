//! Commands on many messages: now, not yet, not at all. In chunks, so that nobody waits long.

use tollgate::Instant;

use super::db::{Db, Row, Value, list, values};
use super::tally::{State, Tally};
use super::{owners, removed};
use crate::error::MailError;
use crate::model::{AccountKey, Selection};

/// Makes up to `limit` deferred messages due. How many. Those of a suspended tenant keep their time.
pub(super) async fn advance(
    db: &Db<'_>,
    selection: &Selection,
    limit: u32,
) -> Result<u64, MailError> {
    let tenant = "select suspended from mail_tenant where id = ?1";
    let tenant = db.row(tenant, values![&selection.tenant_id]).await?;
    if tenant.is_some_and(|row| row.int(0) != 0) {
        return Ok(0);
    }
    let sql = match narrowed(selection) {
        By::Ids => {
            "with picked as materialized ( \
                 select seq as picked_seq from mail_message \
                 where tenant_id = ?1 and id in [texts ?2] and state = 1 \
                 and (?3 is null or batch_code = ?3) and (?4 is null or account_id = ?4) \
                 limit ?5 [skip locked]) \
             update mail_message set state = 0, due_at = null \
             from picked where seq = picked_seq returning account_id"
        }
        By::Batch => {
            "with picked as materialized ( \
                 select seq as picked_seq from mail_message \
                 where tenant_id = ?1 and ?2 is null and batch_code = ?3 and state = 1 \
                 and (?4 is null or account_id = ?4) limit ?5 [skip locked]) \
             update mail_message set state = 0, due_at = null \
             from picked where seq = picked_seq returning account_id"
        }
        By::Tenant => {
            "with picked as materialized ( \
                 select seq as picked_seq from mail_message \
                 where tenant_id = ?1 and state = 1 and ?2 is null and ?3 is null \
                 and (?4 is null or account_id = ?4) limit ?5 [skip locked]) \
             update mail_message set state = 0, due_at = null \
             from picked where seq = picked_seq returning account_id"
        }
    };
    let rows = db.rows(sql, &narrowing(selection, limit)).await?;
    let mut tally = Tally::default();
    for row in &rows {
        let account = AccountKey::new(&selection.tenant_id, row.text(0));
        tally.moved(&account, State::Deferred, State::Waiting);
    }
    tally.write(db).await?;
    Ok(rows.len() as u64)
}

/// Forgets pauses: the limits are asked again. Which accounts have mail waiting.
pub(super) async fn resume_accounts(
    db: &Db<'_>,
    tenant_id: &str,
    account_id: Option<&str>,
) -> Result<Vec<AccountKey>, MailError> {
    db.change(
        "update mail_account set resume_at = null, resume_ordinary_at = null \
         where tenant_id = ?1 and (?2 is null or id = ?2) \
         and (resume_at is not null or resume_ordinary_at is not null)",
        values![tenant_id, account_id],
    )
    .await?;
    let rows = db
        .rows(
            "select account_id from mail_tally \
             where tenant_id = ?1 and (?2 is null or account_id = ?2) and waiting > 0",
            values![tenant_id, account_id],
        )
        .await?;
    Ok(rows.iter().map(|row| AccountKey::new(tenant_id, row.text(0))).collect())
}

/// Holds or lets go a tenant as a whole; how many unsent messages that is about.
pub(super) async fn set_tenant_suspended(
    db: &Db<'_>,
    tenant_id: &str,
    suspended: bool,
) -> Result<u64, MailError> {
    let sql = "update mail_tenant set suspended = ?2 where id = ?1";
    db.change(sql, values![tenant_id, suspended]).await?;
    let sql = "select waiting + deferred from mail_tally where tenant_id = ?1";
    let rows = db.rows(sql, values![tenant_id]).await?;
    Ok(rows.iter().map(|row| row.count(0)).sum())
}

/// From now on new messages of the batch are held, or no longer.
pub(super) async fn set_batch_suspended(
    db: &Db<'_>,
    tenant_id: &str,
    batch_code: &str,
    suspended: bool,
) -> Result<(), MailError> {
    if suspended {
        // Before the batch: whoever adds to it holds its account, for which a deletion may wait.
        owners::tenant_stays(db, tenant_id).await?;
    }
    let lock = format!("mail batch {tenant_id}\n{batch_code}");
    db.rows("select [own ?1]", values![lock]).await?;
    let sql = if suspended {
        "insert into mail_suspended_batch (tenant_id, batch_code) values (?1, ?2) \
         on conflict do nothing"
    } else {
        "delete from mail_suspended_batch where tenant_id = ?1 and batch_code = ?2"
    };
    db.change(sql, values![tenant_id, batch_code]).await.map(drop)
}

/// Holds up to `limit` messages of a batch that is suspended.
pub(super) async fn hold_batch(
    db: &Db<'_>,
    tenant_id: &str,
    batch_code: &str,
    limit: u32,
) -> Result<u64, MailError> {
    let rows = db
        .rows(
            "select seq, account_id, state from mail_message \
             where tenant_id = ?1 and batch_code = ?2 and state in (0, 1) \
             limit ?3 [skip locked]",
            values![tenant_id, batch_code, limit],
        )
        .await?;
    let sql = "update mail_message set state = 3 where seq in [ints ?1]";
    db.change(sql, values![seqs(&rows)]).await?;
    let mut tally = Tally::default();
    for row in &rows {
        let account = AccountKey::new(tenant_id, row.text(1));
        tally.moved(&account, State::of(row.int(2)), State::Suspended);
    }
    tally.write(db).await?;
    Ok(rows.len() as u64)
}

/// Lets go up to `limit` held messages of a batch.
pub(super) async fn let_batch_go(
    db: &Db<'_>,
    tenant_id: &str,
    batch_code: &str,
    now: Instant,
    limit: u32,
) -> Result<u64, MailError> {
    let rows = db
        .rows(
            "with picked as materialized ( \
                 select seq as picked_seq from mail_message \
                 where tenant_id = ?1 and batch_code = ?2 and state = 3 limit ?4 [skip locked]) \
             update mail_message set state = case when due_at > ?3 then 1 else 0 end \
             from picked where seq = picked_seq returning account_id, state",
            values![tenant_id, batch_code, now, limit],
        )
        .await?;
    let mut tally = Tally::default();
    for row in &rows {
        let account = AccountKey::new(tenant_id, row.text(0));
        tally.moved(&account, State::Suspended, State::of(row.int(1)));
    }
    tally.write(db).await?;
    Ok(rows.len() as u64)
}

pub(super) async fn delete_messages(
    db: &Db<'_>,
    selection: &Selection,
    now: Instant,
    limit: u32,
) -> Result<u64, MailError> {
    let sql = match narrowed(selection) {
        By::Ids => {
            "select seq, account_id, state, receipt from mail_message \
             where tenant_id = ?1 and id in [texts ?2] and state <> 2 \
             and (?3 is null or batch_code = ?3) and (?4 is null or account_id = ?4) \
             limit ?5 [skip locked]"
        }
        By::Batch => {
            "select seq, account_id, state, receipt from mail_message \
             where tenant_id = ?1 and ?2 is null and batch_code = ?3 and state <> 2 \
             and (?4 is null or account_id = ?4) limit ?5 [skip locked]"
        }
        By::Tenant => {
            "select seq, account_id, state, receipt from mail_message \
             where tenant_id = ?1 and ?2 is null and ?3 is null and state <> 2 \
             and (?4 is null or account_id = ?4) limit ?5 [skip locked]"
        }
    };
    let rows = db.rows(sql, &narrowing(selection, limit)).await?;
    let mut tally = Tally::default();
    for row in &rows {
        let account = AccountKey::new(&selection.tenant_id, row.text(1));
        let state = State::of(row.int(2));
        tally.left(&account, state);
        // What failed was given back then; what was sent is spent.
        if !matches!(state, State::Sent | State::Error)
            && let Some(receipt) = row.opt_text(3)
        {
            db.change("insert into mail_refund (receipt) values (?1)", values![receipt]).await?;
        }
    }
    remove(db, &rows, now).await?;
    tally.write(db).await?;
    Ok(rows.len() as u64)
}

pub(super) async fn cleanup(
    db: &Db<'_>,
    tenant_id: Option<&str>,
    before: Instant,
    now: Instant,
    limit: u32,
) -> Result<u64, MailError> {
    let sql = "select seq from mail_message where finished_at < ?1 \
         and (?2 is null or tenant_id = ?2) limit ?3 [skip locked]";
    let rows = db.rows(sql, values![before, tenant_id, limit]).await?;
    remove(db, &rows, now).await?;
    Ok(rows.len() as u64)
}

async fn remove(db: &Db<'_>, rows: &[Row], now: Instant) -> Result<(), MailError> {
    if rows.is_empty() {
        return Ok(());
    }
    let seqs = seqs(rows);
    removed::note(db, &seqs, now).await?;
    for sql in [
        "delete from mail_message where seq in [ints ?1]",
        "delete from mail_content where message_seq in [ints ?1]",
        "delete from mail_send_log where message_seq in [ints ?1]",
    ] {
        db.change(sql, values![&seqs]).await?;
    }
    Ok(())
}

/// The first column, as a list.
fn seqs(rows: &[Row]) -> String {
    list(&rows.iter().map(|row| row.int(0)).collect::<Vec<_>>())
}

/// What a selection is found by: an index each.
enum By {
    Ids,
    Batch,
    Tenant,
}

fn narrowed(selection: &Selection) -> By {
    match selection {
        Selection { ids: Some(_), .. } => By::Ids,
        Selection { batch_code: Some(_), .. } => By::Batch,
        _ => By::Tenant,
    }
}

/// Tenant, ids, batch, account, limit: the same for each statement.
fn narrowing(selection: &Selection, limit: u32) -> [Value; 5] {
    let ids = selection.ids.as_ref();
    let ids = ids.map(|ids| serde_json::to_string(ids).expect("texts are always JSON"));
    [
        Value::from(&selection.tenant_id),
        Value::from(&ids),
        Value::from(&selection.batch_code),
        Value::from(&selection.account_id),
        Value::from(limit),
    ]
}
