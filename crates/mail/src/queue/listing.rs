//! Looking: messages as they are shown, attempts, counts.

use tollgate::Instant;

use super::db::{Db, Row, values};
use super::tally::State;
use crate::error::MailError;
use crate::model::{Attempt, Counts, MessageQuery, MessageRow, Status};

/// Which waiting messages: whatever their account does, or only those it holds back, or lets go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Paced {
    Either = 0,
    Yes = 1,
    No = 2,
}

/// A page. One look-up per state by the index that has the order, merged here: no page costs more
/// than a few times its own length, as long as the filters let most rows pass.
pub(super) async fn messages(
    db: &Db<'_>,
    query: &MessageQuery,
    after: i64,
    now: Instant,
) -> Result<Vec<(i64, MessageRow)>, MailError> {
    let tenant = "select suspended from mail_tenant where id = ?1";
    let tenant = db.row(tenant, values![&query.tenant_id]).await?;
    let suspended = tenant.is_some_and(|row| row.int(0) != 0);
    let mut found = Vec::new();
    if let Some(id) = &query.id {
        let sql = "select m.seq, m.id, m.tenant_id, m.account_id, m.state, m.priority, m.due_at, \
             m.batch_code, m.recipients, m.attempts, m.last_error, m.created_at, m.finished_at, \
             a.resume_at, a.resume_ordinary_at from mail_message m \
             left join mail_account a on a.tenant_id = m.tenant_id and a.id = m.account_id \
             where m.tenant_id = ?1 and m.id = ?2";
        let rows = db.rows(sql, values![&query.tenant_id, id]).await?;
        found.extend(rows.iter().map(|row| (row.int(0), shown(row, suspended, now))));
        found.retain(|(seq, row)| {
            *seq > after
                && query.status.is_none_or(|status| status == row.status)
                && query.account_id.as_ref().is_none_or(|id| *id == row.account_id)
                && (query.batch_code.is_none() || query.batch_code == row.batch_code)
        });
        return Ok(found);
    }
    let pauses = Pauses::of(db, query, now).await?;
    for (state, paced) in states(query.status, suspended) {
        if !pauses.can_hold(paced) {
            continue;
        }
        let rows = db
            .rows(
                "select m.seq, m.id, m.tenant_id, m.account_id, m.state, m.priority, m.due_at, \
                 m.batch_code, m.recipients, m.attempts, m.last_error, m.created_at, \
                 m.finished_at, a.resume_at, a.resume_ordinary_at from mail_message m \
                 left join mail_account a on a.tenant_id = m.tenant_id and a.id = m.account_id \
                 where m.tenant_id = ?1 and m.state = ?2 and m.seq > ?3 \
                 and (?4 is null or m.account_id = ?4) and (?5 is null or m.batch_code = ?5) \
                 and (?6 = 0 or ?6 = case when a.resume_at > ?7 \
                     or (m.priority > 0 and a.resume_ordinary_at > ?7) then 1 else 2 end) \
                 order by m.seq limit ?8",
                values![
                    &query.tenant_id,
                    state.number(),
                    after,
                    &query.account_id,
                    &query.batch_code,
                    paced as i64,
                    now,
                    query.limit,
                ],
            )
            .await?;
        found.extend(rows.iter().map(|row| (row.int(0), shown(row, suspended, now))));
    }
    found.sort_by_key(|(seq, _)| *seq);
    found.truncate(usize::try_from(query.limit).unwrap_or(usize::MAX));
    Ok(found)
}

/// Whether any account in question holds its messages back now, and whether any lets some go: so
/// that a backlog is not searched for what it cannot hold.
struct Pauses {
    any_paced: bool,
    any_free: bool,
}

impl Pauses {
    async fn of(db: &Db<'_>, query: &MessageQuery, now: Instant) -> Result<Self, MailError> {
        let sql = "select resume_at, resume_ordinary_at from mail_account \
             where tenant_id = ?1 and (?2 is null or id = ?2)";
        let rows = db.rows(sql, values![&query.tenant_id, &query.account_id]).await?;
        let is_later = |at: Option<Instant>| at.is_some_and(|at| at > now);
        let all = |row: &Row| is_later(row.opt_instant(0));
        let ordinary = |row: &Row| is_later(row.opt_instant(1));
        Ok(Self {
            any_paced: rows.iter().any(|row| all(row) || ordinary(row)),
            any_free: rows.iter().any(|row| !all(row)),
        })
    }

    fn can_hold(&self, paced: Paced) -> bool {
        match paced {
            Paced::Either => true,
            Paced::Yes => self.any_paced,
            Paced::No => self.any_free,
        }
    }
}

/// Which stored states are shown as a status.
fn states(status: Option<Status>, suspended: bool) -> Vec<(State, Paced)> {
    use State::{Deferred, Sending, Suspended, Waiting};
    match (status, suspended) {
        (None, _) => [Waiting, Deferred, Sending, Suspended, State::Sent, State::Error]
            .map(|state| (state, Paced::Either))
            .to_vec(),
        (Some(Status::Sent), _) => vec![(State::Sent, Paced::Either)],
        (Some(Status::Error), _) => vec![(State::Error, Paced::Either)],
        (Some(Status::Pending), false) => {
            vec![(Waiting, Paced::No), (Sending, Paced::Either)]
        }
        (Some(Status::Pending), true) => vec![(Sending, Paced::Either)],
        (Some(Status::Deferred), false) => vec![(Waiting, Paced::Yes), (Deferred, Paced::Either)],
        (Some(Status::Deferred), true) => Vec::new(),
        (Some(Status::Suspended), false) => vec![(Suspended, Paced::Either)],
        (Some(Status::Suspended), true) => {
            [Waiting, Deferred, Suspended].map(|state| (state, Paced::Either)).to_vec()
        }
    }
}

/// A message as people see it: its account's pause and its tenant's suspension are its own.
fn shown(row: &Row, suspended: bool, now: Instant) -> MessageRow {
    let priority: u8 = row.small(5);
    let (own, resume, ordinary) = (row.opt_instant(6), row.opt_instant(13), row.opt_instant(14));
    let paused = resume.max(ordinary.filter(|_| priority > 0)).filter(|at| *at > now);
    let own = own.filter(|at| *at > now);
    let finished_at = row.opt_instant(12);
    let state = State::of(row.int(4));
    let status = match state {
        State::Waiting | State::Deferred | State::Suspended
            if suspended || state == State::Suspended =>
        {
            Status::Suspended
        }
        State::Waiting if paused.is_some() => Status::Deferred,
        State::Waiting | State::Sending | State::Suspended => Status::Pending,
        State::Deferred => Status::Deferred,
        State::Sent => Status::Sent,
        State::Error => Status::Error,
    };
    let deferred_until = match status {
        Status::Deferred => paused.max(own).or_else(|| row.opt_instant(6)),
        Status::Suspended => own,
        Status::Pending | Status::Sent | Status::Error => None,
    };
    MessageRow {
        id: row.text(1),
        tenant_id: row.text(2),
        account_id: row.text(3),
        status,
        priority,
        deferred_until,
        batch_code: row.opt_text(7),
        recipients: row.small(8),
        attempts: row.small(9),
        last_error: row.opt_text(10),
        created_at: row.instant(11),
        sent_at: finished_at.filter(|_| state == State::Sent),
        failed_at: finished_at.filter(|_| state == State::Error),
    }
}

pub(super) async fn attempts(
    db: &Db<'_>,
    tenant_id: &str,
    message_id: &str,
) -> Result<Vec<Attempt>, MailError> {
    let rows = db
        .rows(
            "select l.message_id, l.account_id, l.started_at, l.finished_at, l.instance, \
             l.smtp_code, l.smtp_text, l.outcome \
             from mail_message m join mail_send_log l on l.message_seq = m.seq \
             where m.tenant_id = ?1 and m.id = ?2 order by l.seq",
            values![tenant_id, message_id],
        )
        .await?;
    let attempt = |row: &Row| Attempt {
        message_id: row.text(0),
        account_id: row.text(1),
        started_at: row.instant(2),
        finished_at: row.instant(3),
        instance: row.text(4),
        smtp_code: row.opt_int(5).and_then(|code| u16::try_from(code).ok()),
        smtp_text: row.text(6),
        outcome: row.text(7),
    };
    Ok(rows.iter().map(attempt).collect())
}

pub(super) async fn counts(
    db: &Db<'_>,
    tenant_id: Option<&str>,
    now: Instant,
) -> Result<Vec<Counts>, MailError> {
    let rows = db
        .rows(
            "select c.tenant_id, c.account_id, c.waiting, c.deferred, c.sending, c.suspended, \
             c.sent, c.errors, c.rate_limited, t.suspended, a.resume_at, a.resume_ordinary_at \
             from mail_tally c \
             join mail_account a on a.tenant_id = c.tenant_id and a.id = c.account_id \
             join mail_tenant t on t.id = c.tenant_id \
             where (?1 is null or c.tenant_id = ?1) order by c.tenant_id, c.account_id",
            values![tenant_id],
        )
        .await?;
    let mut counts = Vec::with_capacity(rows.len());
    for row in &rows {
        let is_later = |column| row.opt_instant(column).is_some_and(|at| at > now);
        let waiting = row.count(2);
        // Of those waiting, how many their account lets go now.
        let free = if is_later(10) {
            0
        } else if is_later(11) && waiting > 0 {
            // Only priority 0 goes: the few there are.
            let sql = "select count(*) from mail_message where tenant_id = ?1 \
                 and account_id = ?2 and state = 0 and priority = 0";
            let found = db.row(sql, values![row.text(0), row.text(1)]).await?;
            found.map_or(0, |row| row.count(0)).min(waiting)
        } else {
            waiting
        };
        let mut count = Counts {
            tenant_id: row.text(0),
            account_id: row.text(1),
            sent: row.count(6),
            errors: row.count(7),
            rate_limited: row.count(8),
            pending: free + row.count(4),
            deferred: waiting - free + row.count(3),
            suspended: row.count(5),
        };
        if row.int(9) != 0 {
            count.suspended += waiting + row.count(3);
            count.deferred = 0;
            count.pending = row.count(4);
        }
        counts.push(count);
    }
    Ok(counts)
}
