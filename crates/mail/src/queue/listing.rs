//! Looking: messages as they are shown, attempts, counts.

use tollgate::Instant;

use super::db::{Db, Row, values};
use super::tally::State;
use crate::error::MailError;
use crate::model::{Attempt, Counts, MessageQuery, MessageRow, Status};

/// Where to look for messages of a status.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    State(State),
    /// Those waiting whose account holds them back now, or lets them go.
    Waiting(Paced),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Paced {
    Yes,
    No,
}

/// What is shown of a message, of those that the rest of the statement names.
macro_rules! listed {
    ($rest:literal) => {
        concat!(
            "select m.seq, m.id, m.tenant_id, m.account_id, m.state, m.priority, m.due_at, \
             m.batch_code, m.recipients, m.attempts, m.last_error, m.created_at, m.finished_at, \
             a.resume_at, a.resume_ordinary_at from mail_message m \
             left join mail_account a on a.tenant_id = m.tenant_id and a.id = m.account_id ",
            $rest
        )
    };
}

/// A page. Looked up by indexes that have the order, place by place, and merged here: a few times
/// its own length is held, and read, as long as the filters for account and batch let most rows
/// pass. Where a status hangs on the pauses of accounts, each account with mail is asked, too.
pub(super) async fn messages(
    db: &Db<'_>,
    query: &MessageQuery,
    after: i64,
    now: Instant,
) -> Result<Vec<(i64, MessageRow)>, MailError> {
    let tenant = "select suspended from mail_tenant where id = ?1";
    let tenant = db.row(tenant, values![&query.tenant_id]).await?;
    let suspended = tenant.is_some_and(|row| row.int(0) != 0);
    let mut rows = Vec::new();
    if let Some(id) = &query.id {
        let sql = listed!("where m.tenant_id = ?1 and m.id = ?2");
        rows = db.rows(sql, values![&query.tenant_id, id]).await?;
    } else {
        for place in places(query.status, suspended) {
            rows.extend(match place {
                Place::State(state) => in_state(db, query, after, state).await?,
                Place::Waiting(paced) => waiting(db, query, after, paced, now).await?,
            });
        }
    }
    rows.sort_by_key(|row| row.int(0));
    let mut found: Vec<_> =
        rows.iter().map(|row| (row.int(0), shown(row, suspended, now))).collect();
    found.retain(|(seq, row)| {
        *seq > after
            && query.status.is_none_or(|status| status == row.status)
            && query.account_id.as_ref().is_none_or(|id| *id == row.account_id)
            && (query.batch_code.is_none() || query.batch_code == row.batch_code)
    });
    found.truncate(usize::try_from(query.limit).unwrap_or(usize::MAX));
    Ok(found)
}

async fn in_state(
    db: &Db<'_>,
    query: &MessageQuery,
    after: i64,
    state: State,
) -> Result<Vec<Row>, MailError> {
    let sql = listed!(
        "where m.tenant_id = ?1 and m.state = ?2 and m.seq > ?3 \
         and (?4 is null or m.account_id = ?4) and (?5 is null or m.batch_code = ?5) \
         order by m.seq limit ?6"
    );
    let MessageQuery { tenant_id, account_id, batch_code, limit, .. } = query;
    db.rows(sql, values![tenant_id, state.number(), after, account_id, batch_code, *limit]).await
}

/// Account by account and priority by priority: so that a backlog is never searched for what it
/// cannot hold.
async fn waiting(
    db: &Db<'_>,
    query: &MessageQuery,
    after: i64,
    paced: Paced,
    now: Instant,
) -> Result<Vec<Row>, MailError> {
    let accounts = "select a.id, a.resume_at, a.resume_ordinary_at from mail_account a \
         join mail_tally c on c.tenant_id = a.tenant_id and c.account_id = a.id \
         where a.tenant_id = ?1 and (?2 is null or a.id = ?2) and c.waiting > 0";
    let accounts = db.rows(accounts, values![&query.tenant_id, &query.account_id]).await?;
    let sql = listed!(
        "where m.tenant_id = ?1 and m.account_id = ?2 and m.state = 0 and m.priority = ?3 \
         and m.seq > ?4 and m.seq < ?5 and (?6 is null or m.batch_code = ?6) \
         order by m.seq limit ?7"
    );
    let MessageQuery { tenant_id, batch_code, limit, .. } = query;
    let mut first = First::new(*limit);
    for account in &accounts {
        let is_later = |column| account.opt_instant(column).is_some_and(|at| at > now);
        for priority in 0..=3_i64 {
            let held = is_later(1) || (priority > 0 && is_later(2));
            if held == (paced == Paced::Yes) {
                let id = account.text(0);
                let before = first.before();
                let values = values![tenant_id, id, priority, after, before, batch_code, *limit];
                first.merge(db.rows(sql, values).await?);
            }
        }
    }
    Ok(first.rows)
}

/// The first rows of several lists, by their first column.
struct First {
    rows: Vec<Row>,
    limit: usize,
}

impl First {
    fn new(limit: u32) -> Self {
        Self { rows: Vec::new(), limit: usize::try_from(limit).unwrap_or(usize::MAX) }
    }

    fn merge(&mut self, rows: Vec<Row>) {
        self.rows.extend(rows);
        self.rows.sort_by_key(|row| row.int(0));
        self.rows.truncate(self.limit);
    }

    /// Only a row before this can be among them.
    fn before(&self) -> i64 {
        let last = self.rows.last().filter(|_| self.rows.len() >= self.limit);
        last.map_or(i64::MAX, |row| row.int(0))
    }
}

/// Where messages are that are shown with a status.
fn places(status: Option<Status>, suspended: bool) -> Vec<Place> {
    use State::{Deferred, Sending, Suspended, Waiting};
    let all = |states: &[State]| states.iter().map(|state| Place::State(*state)).collect();
    match (status, suspended) {
        (None, _) => all(&[Waiting, Deferred, Sending, Suspended, State::Sent, State::Error]),
        (Some(Status::Sent), _) => all(&[State::Sent]),
        (Some(Status::Error), _) => all(&[State::Error]),
        (Some(Status::Pending), false) => {
            vec![Place::Waiting(Paced::No), Place::State(Sending)]
        }
        (Some(Status::Pending), true) => all(&[Sending]),
        (Some(Status::Deferred), false) => {
            vec![Place::Waiting(Paced::Yes), Place::State(Deferred)]
        }
        (Some(Status::Deferred), true) => Vec::new(),
        (Some(Status::Suspended), false) => all(&[Suspended]),
        (Some(Status::Suspended), true) => all(&[Waiting, Deferred, Suspended]),
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

#[cfg(test)]
mod tests {
    use super::First;
    use crate::queue::db::{Row, Value};

    #[test]
    fn of_several_lists_the_first_rows_are_kept_and_no_later_ones_asked_for() {
        let rows = |seqs: &[i64]| seqs.iter().map(|seq| Row(vec![Value::from(*seq)])).collect();
        let mut first = First::new(3);
        for (seqs, kept, before) in [
            (vec![5, 9], vec![5, 9], i64::MAX),
            (vec![2, 7, 8], vec![2, 5, 7], 7),
            (vec![], vec![2, 5, 7], 7),
            (vec![1, 3, 6], vec![1, 2, 3], 3),
        ] {
            first.merge(rows(&seqs));
            assert_eq!(first.rows.iter().map(|row| row.int(0)).collect::<Vec<_>>(), kept);
            assert_eq!(first.before(), before);
        }
    }
}
