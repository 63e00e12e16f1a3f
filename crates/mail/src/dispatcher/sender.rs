//! An account made ready for sending: its server and its limits, as of one version of it.

use tollgate::{Decision, Instant, Limiter, Outcome};

use crate::error::{MailError, store_error};
use crate::mail::Inner;
use crate::model::{Account, AccountKey, LimitUnit};
use crate::policies::account_limiter;
use crate::queue::{Claimed, PauseScope};
use crate::smtp::{Failure, Server};

#[derive(Debug)]
pub(super) struct Sender {
    pub(super) account: Account,
    /// Or why there can be no connection.
    pub(super) server: Result<Server, Failure>,
    /// For priority 0, and for all others.
    immediate: Limiter,
    ordinary: Limiter,
}

/// What the limits say to one message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Pace {
    Go {
        at: Instant,
        /// Gives the unit back. `None`: the store was away, and nothing was counted.
        receipt: Option<String>,
    },
    Wait {
        until: Instant,
        scope: PauseScope,
        at: Instant,
    },
    /// It is more than the limits hold.
    Never {
        max: u64,
        at: Instant,
    },
}

impl Sender {
    /// `None`: there is no such account any more.
    pub(super) async fn load(inner: &Inner, key: &AccountKey) -> Result<Option<Self>, MailError> {
        let (account, server) = match inner.account_for_sending(key).await {
            Ok(None) => return Ok(None),
            Ok(Some(account)) => {
                let server = Server::new(&account, &inner.settings);
                (account, server)
            }
            // No reason to leave its messages without a word.
            Err(MailError::Key(reason)) => {
                let Some(record) = inner.queue.account(key).await? else { return Ok(None) };
                (record.account, Err(Failure::unconnected(reason)))
            }
            Err(error) => return Err(error),
        };
        let immediate = account_limiter(&inner.gate, &account, 0)?;
        let ordinary = account_limiter(&inner.gate, &account, 1)?;
        Ok(Some(Self { account, server, immediate, ordinary }))
    }

    /// May this message be sent now? If so, it is counted.
    pub(super) async fn pace(&self, claimed: &Claimed) -> Result<Pace, MailError> {
        let limiter = if claimed.priority == 0 { &self.immediate } else { &self.ordinary };
        let AccountKey { tenant_id, account_id } = &self.account.key;
        let subject = [("tenant", tenant_id.as_str()), ("account", account_id.as_str())];
        let answer = limiter.check(&subject, self.cost(claimed)).await.map_err(store_error)?;
        let at = answer.decision.decided_at;
        Ok(match answer.decision.outcome {
            Outcome::Allowed => Pace::Go { at, receipt: answer.receipt },
            Outcome::Refused { retry_at } => {
                Pace::Wait { until: retry_at, scope: self.scope(claimed.priority), at }
            }
            Outcome::NeverFits => Pace::Never { max: smallest_max(&answer.decision), at },
        })
    }

    /// What the limits count.
    pub(super) fn cost(&self, claimed: &Claimed) -> u32 {
        match self.account.limit_unit {
            LimitUnit::Messages => 1,
            LimitUnit::Recipients => claimed.recipients.max(1),
        }
    }

    /// Whom a refusal of this priority holds back.
    fn scope(&self, priority: u8) -> PauseScope {
        if priority > 0 && self.account.priority0_share > 0 {
            PauseScope::Ordinary
        } else {
            PauseScope::All
        }
    }
}

fn smallest_max(decision: &Decision) -> u64 {
    decision.limits.iter().map(|limit| limit.standing.max).min().unwrap_or(0)
}
