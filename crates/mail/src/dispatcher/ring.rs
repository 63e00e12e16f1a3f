//! Whose turn it is: tenants in a circle, and within each its accounts in a circle.
//!
//! So a tenant with a thousand accounts is served as often as one with a single account, and an
//! account with a million messages as often as one with a single message. Holds accounts, never
//! messages.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::model::AccountKey;

#[derive(Debug, Default)]
pub(super) struct Ring {
    /// Tenants that have an account in here, each once.
    tenants: VecDeque<String>,
    accounts: HashMap<String, VecDeque<String>>,
    members: HashSet<AccountKey>,
}

impl Ring {
    /// Puts an account last in its circle, unless it is in it.
    pub(super) fn push(&mut self, key: AccountKey) {
        if self.members.contains(&key) {
            return;
        }
        let circle = self.accounts.entry(key.tenant_id.clone()).or_default();
        if circle.is_empty() {
            self.tenants.push_back(key.tenant_id.clone());
        }
        circle.push_back(key.account_id.clone());
        self.members.insert(key);
    }

    /// Takes out whoever is next.
    pub(super) fn next(&mut self) -> Option<AccountKey> {
        let tenant_id = self.tenants.pop_front()?;
        let circle = self.accounts.get_mut(&tenant_id)?;
        let account_id = circle.pop_front()?;
        if circle.is_empty() {
            self.accounts.remove(&tenant_id);
        } else {
            self.tenants.push_back(tenant_id.clone());
        }
        let key = AccountKey { tenant_id, account_id };
        self.members.remove(&key);
        Some(key)
    }

    pub(super) fn contains(&self, key: &AccountKey) -> bool {
        self.members.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use super::Ring;
    use crate::model::AccountKey;

    #[test]
    fn tenants_alternate_however_many_accounts_one_of_them_has() {
        let mut ring = Ring::default();
        for account in ["a1", "a2", "a3", "a1"] {
            ring.push(AccountKey::new("a", account));
        }
        ring.push(AccountKey::new("b", "b1"));
        let order: Vec<String> =
            std::iter::from_fn(|| ring.next()).map(|key| key.account_id).collect();
        assert_eq!(order, ["a1", "b1", "a2", "a3"]);
        assert!(ring.next().is_none());
    }

    #[test]
    fn whoever_comes_back_is_last() {
        let mut ring = Ring::default();
        for account in ["one", "two", "three"] {
            ring.push(AccountKey::new("a", account));
        }
        let first = ring.next().unwrap();
        assert!(!ring.contains(&first));
        ring.push(first);
        let order: Vec<String> =
            std::iter::from_fn(|| ring.next()).map(|key| key.account_id).collect();
        assert_eq!(order, ["two", "three", "one"]);
    }
}
