//! What became of an attempt, noted with everything that follows from it.

use tollgate::Instant;

use super::db::{Db, Row, values};
use super::tally::{State, Tally};
use super::work::note_pause;
use super::{Finish, Finished, Outcome};
use crate::error::MailError;

/// What a server says is kept to this many characters.
const MAX_TEXT_CHARS: usize = 1000;

/// A message after an attempt.
struct After {
    state: State,
    due_at: Option<Instant>,
    last_error: Option<String>,
    attempts: i64,
}

pub(super) async fn finish(db: &Db<'_>, finish: &Finish<'_>) -> Result<Finished, MailError> {
    let claimed = finish.claimed;
    let before = db
        .row(
            "select state, lease_by, attempts, batch_code, receipt from mail_message \
             where seq = ?1 [for update]",
            values![claimed.seq],
        )
        .await?;
    let mut tally = Tally::default();
    let mut finished = Finished::Lost;
    if let Some(before) = before
        && is_ours(&before, finish)
    {
        let after = after(db, &before, finish).await?;
        tally.moved(&claimed.account, State::of(before.int(0)), after.state);
        write_message(db, finish, &after).await?;
        if matches!(after.state, State::Sent | State::Error) {
            write_final(db, finish, &after, &before).await?;
        }
        finished = Finished::Noted;
    }
    match &finish.outcome {
        // Nobody was asked to take it: no attempt.
        Outcome::RateLimited { .. } => tally.rate_limited(&claimed.account),
        Outcome::Sent => write_log(db, finish, "sent").await?,
        Outcome::Failed { .. } => write_log(db, finish, "error").await?,
        Outcome::Retry { .. } => write_log(db, finish, "retry").await?,
        Outcome::Throttled { .. } => write_log(db, finish, "throttled").await?,
    }
    if let Outcome::Throttled { pause, .. } = &finish.outcome {
        note_pause(db, pause, &mut tally).await?;
    }
    tally.write(db).await?;
    Ok(finished)
}

/// Still under our lease; or, if it was sent after all, waiting to be sent again by whomever.
fn is_ours(before: &Row, finish: &Finish<'_>) -> bool {
    match State::of(before.int(0)) {
        State::Sending => {
            before.text(1) == finish.instance && before.int(2) == i64::from(finish.claimed.attempts)
        }
        State::Waiting | State::Deferred | State::Suspended => finish.outcome == Outcome::Sent,
        State::Sent | State::Error => false,
    }
}

async fn after(db: &Db<'_>, before: &Row, finish: &Finish<'_>) -> Result<After, MailError> {
    let attempts = before.int(2);
    let (state, due_at, error, attempts) = match &finish.outcome {
        Outcome::Sent => (State::Sent, None, None, attempts),
        Outcome::Failed { reason } => (State::Error, None, Some(reason), attempts),
        Outcome::RateLimited { reason } => (State::Error, None, Some(reason), attempts - 1),
        Outcome::Retry { at, reason } | Outcome::Throttled { at, reason, .. } => {
            (State::Deferred, Some(*at), Some(reason), attempts)
        }
    };
    let is_final = matches!(state, State::Sent | State::Error);
    let held = match before.opt_text(3) {
        Some(batch) if !is_final => {
            let held =
                "select 1 from mail_suspended_batch where tenant_id = ?1 and batch_code = ?2";
            let tenant_id = &finish.claimed.account.tenant_id;
            db.row(held, values![tenant_id, batch]).await?.is_some()
        }
        _ => false,
    };
    let state = if held { State::Suspended } else { state };
    Ok(After { state, due_at, last_error: error.map(|text| shortened(text)), attempts })
}

async fn write_message(db: &Db<'_>, finish: &Finish<'_>, after: &After) -> Result<(), MailError> {
    let is_final = matches!(after.state, State::Sent | State::Error);
    db.change(
        "update mail_message set state = ?2, due_at = ?3, last_error = ?4, attempts = ?5, \
             finished_at = ?6, claimed_at = null, lease_until = null, lease_by = null \
         where seq = ?1",
        values![
            finish.claimed.seq,
            after.state.number(),
            after.due_at,
            &after.last_error,
            after.attempts,
            is_final.then_some(finish.finished_at),
        ],
    )
    .await
    .map(drop)
}

/// What is final: no content any more, a report to the tenant, a refund to the key.
async fn write_final(
    db: &Db<'_>,
    finish: &Finish<'_>,
    after: &After,
    before: &Row,
) -> Result<(), MailError> {
    let claimed = finish.claimed;
    db.change("delete from mail_content where message_seq = ?1", values![claimed.seq]).await?;
    let status = if after.state == State::Sent { "sent" } else { "error" };
    db.change(
        "insert into mail_report (tenant_id, message_id, account_id, batch_code, status, at, \
             attempts, smtp_code, error) \
         select id, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 from mail_tenant \
         where id = ?1 and report_url is not null",
        values![
            &claimed.account.tenant_id,
            &claimed.id,
            &claimed.account.account_id,
            &before.opt_text(3),
            status,
            finish.finished_at,
            after.attempts,
            finish.smtp_code.map(i64::from),
            &after.last_error,
        ],
    )
    .await?;
    if after.state == State::Error
        && let Some(receipt) = before.opt_text(4)
    {
        db.change("insert into mail_refund (receipt) values (?1)", values![receipt]).await?;
    }
    Ok(())
}

async fn write_log(db: &Db<'_>, finish: &Finish<'_>, outcome: &str) -> Result<(), MailError> {
    let claimed = finish.claimed;
    db.change(
        "insert into mail_send_log (message_seq, tenant_id, account_id, message_id, instance, \
             started_at, finished_at, smtp_code, smtp_text, outcome) \
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        values![
            claimed.seq,
            &claimed.account.tenant_id,
            &claimed.account.account_id,
            &claimed.id,
            finish.instance,
            finish.started_at,
            finish.finished_at,
            finish.smtp_code.map(i64::from),
            shortened(&finish.smtp_text),
            outcome,
        ],
    )
    .await
    .map(drop)
}

/// PostgreSQL keeps no zero bytes in a text.
fn shortened(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(MAX_TEXT_CHARS).collect()
}
