//! Messages on their way: found, claimed, released, promoted, recovered.

use tollgate::Instant;

use super::db::{Db, Row, list, values};
use super::tally::{State, Tally};
use super::{Claimed, Claims, Lease, Moved, OpenClaim, Pause, PauseCause, PauseScope};
use crate::error::MailError;
use crate::model::AccountKey;

pub(super) async fn accounts_with_work(
    db: &Db<'_>,
    now: Instant,
) -> Result<Vec<AccountKey>, MailError> {
    let rows = db
        .rows(
            "select c.tenant_id, c.account_id from mail_tally c \
             join mail_account a on a.tenant_id = c.tenant_id and a.id = c.account_id \
             join mail_tenant t on t.id = c.tenant_id \
             where c.waiting > 0 and t.suspended = 0 \
             and (a.resume_at is null or a.resume_at <= ?1) \
             and (a.resume_ordinary_at is null or a.resume_ordinary_at <= ?1 or exists ( \
                 select 1 from mail_message m where m.tenant_id = c.tenant_id \
                 and m.account_id = c.account_id and m.state = 0 and m.priority = 0)) \
             order by c.tenant_id, c.account_id",
            values![now],
        )
        .await?;
    Ok(rows.iter().map(|row| AccountKey::new(row.text(0), row.text(1))).collect())
}

pub(super) async fn next_due(db: &Db<'_>, now: Instant) -> Result<Option<Instant>, MailError> {
    let due = "select due_at from mail_message where state = 1 order by due_at limit 1";
    // One that has ended is found by whoever looks; or it is ours, and under way.
    let lease = "select lease_until from mail_message where state = 2 and lease_until > ?1 \
         order by lease_until limit 1";
    let mut earliest: Option<Instant> = None;
    let mut note = |at: Option<Instant>| {
        earliest = match (earliest, at) {
            (Some(before), Some(at)) => Some(before.min(at)),
            (before, at) => before.or(at),
        };
    };
    note(db.row(due, &[]).await?.and_then(|row| row.opt_instant(0)));
    note(db.row(lease, values![now]).await?.and_then(|row| row.opt_instant(0)));
    let paused = db
        .rows(
            "select a.resume_at, a.resume_ordinary_at from mail_tally c \
             join mail_account a on a.tenant_id = c.tenant_id and a.id = c.account_id \
             join mail_tenant t on t.id = c.tenant_id \
             where c.waiting > 0 and t.suspended = 0 \
             and (a.resume_at > ?1 or a.resume_ordinary_at > ?1)",
            values![now],
        )
        .await?;
    for row in &paused {
        for at in [row.opt_instant(0), row.opt_instant(1)] {
            note(at.filter(|at| *at > now));
        }
    }
    Ok(earliest)
}

pub(super) async fn claim(
    db: &Db<'_>,
    account: &AccountKey,
    lease: Lease<'_>,
    limit: u32,
) -> Result<Option<Claims>, MailError> {
    let found = db
        .row(
            "select a.version, a.resume_at, a.resume_ordinary_at, t.suspended from mail_account a \
             join mail_tenant t on t.id = a.tenant_id where a.tenant_id = ?1 and a.id = ?2",
            values![&account.tenant_id, &account.account_id],
        )
        .await?;
    let Some(found) = found else { return Ok(None) };
    let is_later = |at: Option<Instant>| at.is_some_and(|at| at > lease.now);
    if found.int(3) != 0 || is_later(found.opt_instant(1)) {
        return Ok(None);
    }
    let lowest_priority = if is_later(found.opt_instant(2)) { 0 } else { 3 };
    let rows = db
        .rows(
            "with picked as materialized ( \
                 select seq as picked_seq from mail_message m \
                 where tenant_id = ?1 and account_id = ?2 and state = 0 and priority <= ?3 \
                 and not exists (select 1 from mail_suspended_batch b \
                     where b.tenant_id = m.tenant_id and b.batch_code = m.batch_code) \
                 order by priority, seq limit ?4 [skip locked]) \
             update mail_message set state = 2, attempts = attempts + 1, claimed_at = ?5, \
                 lease_until = ?6, lease_by = ?7 \
             from picked where seq = picked_seq \
             returning seq, id, priority, recipients, attempts, created_at",
            values![
                &account.tenant_id,
                &account.account_id,
                i64::from(lowest_priority),
                limit,
                lease.now,
                lease.until,
                lease.instance,
            ],
        )
        .await?;
    let mut messages: Vec<Claimed> = rows
        .iter()
        .map(|row| Claimed {
            seq: row.int(0),
            account: account.clone(),
            id: row.text(1),
            priority: row.small(2),
            recipients: row.small(3),
            attempts: row.small(4),
            created_at: row.instant(5),
        })
        .collect();
    messages.sort_by_key(|message| (message.priority, message.seq));
    let mut tally = Tally::default();
    for _ in &messages {
        tally.moved(account, State::Waiting, State::Sending);
    }
    tally.write(db).await?;
    Ok(Some(Claims { account_version: found.int(0), messages }))
}

pub(super) async fn release(
    db: &Db<'_>,
    instance: &str,
    claimed: &[Claimed],
    pause: Option<&Pause>,
) -> Result<(), MailError> {
    let mut tally = Tally::default();
    for message in claimed {
        let row = db
            .row(
                "update mail_message set attempts = attempts - 1, claimed_at = null, \
                     lease_until = null, lease_by = null, \
                     state = case when exists (select 1 from mail_suspended_batch b \
                         where b.tenant_id = mail_message.tenant_id \
                         and b.batch_code = mail_message.batch_code) then 3 else 0 end \
                 where seq = ?1 and state = 2 and lease_by = ?2 and attempts = ?3 \
                 returning state",
                values![message.seq, instance, message.attempts],
            )
            .await?;
        if let Some(row) = row {
            tally.moved(&message.account, State::Sending, State::of(row.int(0)));
        }
    }
    if let Some(pause) = pause {
        note_pause(db, pause, &mut tally).await?;
    }
    tally.write(db).await
}

pub(super) async fn pause_account(db: &Db<'_>, pause: &Pause) -> Result<(), MailError> {
    let mut tally = Tally::default();
    note_pause(db, pause, &mut tally).await?;
    tally.write(db).await
}

pub(super) async fn note_pause(
    db: &Db<'_>,
    pause: &Pause,
    tally: &mut Tally,
) -> Result<(), MailError> {
    let sql = match pause.scope {
        PauseScope::All => {
            "update mail_account set resume_at = ?4 where tenant_id = ?1 and id = ?2 \
             and version = ?3 and (resume_at is null or resume_at < ?4)"
        }
        PauseScope::Ordinary => {
            "update mail_account set resume_ordinary_at = ?4 where tenant_id = ?1 and id = ?2 \
             and version = ?3 and (resume_ordinary_at is null or resume_ordinary_at < ?4)"
        }
    };
    let AccountKey { tenant_id, account_id } = &pause.account;
    db.change(sql, values![tenant_id, account_id, pause.version, pause.until]).await?;
    if pause.cause == PauseCause::Limit {
        tally.rate_limited(&pause.account);
    }
    Ok(())
}

pub(super) async fn open_claims(
    db: &Db<'_>,
    now: Instant,
    instance: &str,
    under_way: &[i64],
    limit: u32,
) -> Result<Vec<OpenClaim>, MailError> {
    let rows = db
        .rows(
            "select seq, lease_by, claimed_at, lease_until from mail_message \
             where state = 2 and (lease_by <> ?2 or lease_until <= ?1) \
             and not (lease_by = ?2 and seq in [ints ?3]) \
             order by lease_until, seq limit ?4",
            values![now, instance, list(under_way), limit],
        )
        .await?;
    Ok(rows.iter().map(open_claim_of).collect())
}

fn open_claim_of(row: &Row) -> OpenClaim {
    OpenClaim {
        seq: row.int(0),
        instance: row.text(1),
        claimed_at: row.instant(2),
        until: row.instant(3),
    }
}

pub(super) async fn take_over(
    db: &Db<'_>,
    claims: &[OpenClaim],
    now: Instant,
) -> Result<Moved, MailError> {
    let seqs: Vec<i64> = claims.iter().map(|claim| claim.seq).collect();
    let mut abandoned = db
        .rows(
            "select seq, lease_by, claimed_at, lease_until, tenant_id, account_id, id \
             from mail_message where state = 2 and seq in [ints ?1] [skip locked]",
            values![list(&seqs)],
        )
        .await?;
    abandoned.retain(|row| claims.contains(&open_claim_of(row)));
    let mut tally = Tally::default();
    for row in &abandoned {
        let account = AccountKey::new(row.text(4), row.text(5));
        let said = "the instance that was sending it stopped; whether it arrived is not known";
        let moved = db
            .row(
                "update mail_message set claimed_at = null, lease_until = null, lease_by = null, \
                     last_error = ?2, state = case when exists (select 1 from mail_suspended_batch b \
                         where b.tenant_id = mail_message.tenant_id \
                         and b.batch_code = mail_message.batch_code) then 3 else 0 end \
                 where seq = ?1 returning state",
                values![row.int(0), said],
            )
            .await?;
        let state = moved.map_or(State::Waiting, |row| State::of(row.int(0)));
        tally.moved(&account, State::Sending, state);
        db.change(
            "insert into mail_send_log (message_seq, tenant_id, account_id, message_id, instance, \
                 started_at, finished_at, smtp_text, outcome) \
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'unknown')",
            values![
                row.int(0),
                row.text(4),
                row.text(5),
                row.text(6),
                row.text(1),
                row.instant(2),
                now,
                said,
            ],
        )
        .await?;
    }
    tally.write(db).await?;
    Ok(Moved { accounts: tally.accounts(), messages: abandoned.len() as u64 })
}

pub(super) async fn promote_due(db: &Db<'_>, now: Instant, limit: u32) -> Result<Moved, MailError> {
    let rows = db
        .rows(
            "with picked as materialized ( \
                 select seq as picked_seq from mail_message where state = 1 and due_at <= ?1 \
                 order by due_at limit ?2 [skip locked]) \
             update mail_message set state = 0 from picked where seq = picked_seq \
             returning tenant_id, account_id",
            values![now, limit],
        )
        .await?;
    let mut tally = Tally::default();
    for row in &rows {
        let account = AccountKey::new(row.text(0), row.text(1));
        tally.moved(&account, State::Deferred, State::Waiting);
    }
    tally.write(db).await?;
    Ok(Moved { accounts: tally.accounts(), messages: rows.len() as u64 })
}
