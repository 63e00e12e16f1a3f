//! How the dispatcher of this process hears of new mail at once. Only a hint: what is lost here is
//! found by polling.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::model::AccountKey;

/// Accounts that may have something to send since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct Nudges {
    accounts: Mutex<BTreeSet<AccountKey>>,
    arrived: Notify,
}

impl Nudges {
    pub(crate) fn nudge(&self, accounts: impl IntoIterator<Item = AccountKey>) {
        self.accounts.lock().extend(accounts);
        self.arrived.notify_one();
    }

    pub(crate) fn take(&self) -> BTreeSet<AccountKey> {
        std::mem::take(&mut *self.accounts.lock())
    }

    /// Returns when something was nudged since the last call, also with no account named.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }
}
