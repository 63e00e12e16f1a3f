//! The counts per account that change with every message, collected and written last.

use std::collections::BTreeMap;

use super::db::{Db, values};
use crate::error::MailError;
use crate::model::AccountKey;

/// Where a message is, as it is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Waiting = 0,
    Deferred = 1,
    Sending = 2,
    Suspended = 3,
    Sent = 4,
    Error = 5,
}

impl State {
    pub(super) fn of(number: i64) -> Self {
        match number {
            0 => Self::Waiting,
            1 => Self::Deferred,
            2 => Self::Sending,
            3 => Self::Suspended,
            4 => Self::Sent,
            _ => Self::Error,
        }
    }

    pub(super) fn number(self) -> i64 {
        self as i64
    }
}

/// Changes to be made to the counts of several accounts.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<AccountKey, Delta>);

/// By [`State`]; then how often the account was rate limited.
type Delta = [i64; 7];
const RATE_LIMITED: usize = 6;

impl Tally {
    /// A new message.
    pub(super) fn came(&mut self, account: &AccountKey, to: State) {
        self.of(account)[to as usize] += 1;
    }

    pub(super) fn moved(&mut self, account: &AccountKey, from: State, to: State) {
        self.left(account, from);
        self.came(account, to);
    }

    /// A message is no more. What was sent and what failed stays counted: those are totals.
    pub(super) fn left(&mut self, account: &AccountKey, from: State) {
        if !matches!(from, State::Sent | State::Error) {
            self.of(account)[from as usize] -= 1;
        }
    }

    pub(super) fn rate_limited(&mut self, account: &AccountKey) {
        self.of(account)[RATE_LIMITED] += 1;
    }

    fn of(&mut self, account: &AccountKey) -> &mut Delta {
        // Most calls find it; only a new one is cloned.
        if !self.0.contains_key(account) {
            self.0.insert(account.clone(), Delta::default());
        }
        self.0.get_mut(account).expect("it was put there")
    }

    pub(super) fn accounts(&self) -> Vec<AccountKey> {
        self.0.keys().cloned().collect()
    }

    /// The last thing in a transaction: in order of the accounts, so that two never wait for each
    /// other.
    pub(super) async fn write(&self, db: &Db<'_>) -> Result<(), MailError> {
        for (account, delta) in self.0.iter().filter(|(_, delta)| delta.iter().any(|it| *it != 0)) {
            let [waiting, deferred, sending, suspended, sent, errors, rate_limited] = *delta;
            db.change(
                "update mail_tally set waiting = waiting + ?3, deferred = deferred + ?4, \
                 sending = sending + ?5, suspended = suspended + ?6, sent = sent + ?7, \
                 errors = errors + ?8, rate_limited = rate_limited + ?9 \
                 where tenant_id = ?1 and account_id = ?2",
                values![
                    &account.tenant_id,
                    &account.account_id,
                    waiting,
                    deferred,
                    sending,
                    suspended,
                    sent,
                    errors,
                    rate_limited,
                ],
            )
            .await?;
        }
        Ok(())
    }
}
