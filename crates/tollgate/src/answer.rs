//! A decision with the policy that made it and, if it was allowed, its receipt.

use std::sync::Arc;

use tollgate_core::store::Decided;
use tollgate_core::{Decision, LimitReport};

use crate::compiled::{Compiled, Keys};
use crate::receipt;
use crate::secret::Keyed;

/// The answer to a check or a peek.
#[derive(Clone, Debug)]
pub struct Answer {
    pub policy: Arc<Compiled>,
    pub decision: Decision,
    /// Gives back what this decision spent.
    pub receipt: Option<String>,
    /// Set when the store could not answer and the policy said what to do then.
    pub degraded: Option<Degraded>,
}

/// How an answer was found without the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Degraded {
    /// Allowed without counting.
    Allowed,
    /// Counted in this instance's memory only.
    Local,
}

impl Answer {
    pub(crate) fn new(
        policy: Arc<Compiled>,
        decided: Decided,
        keys: &Keys<'_>,
        signer: &Keyed,
    ) -> Self {
        let Decided { decision, spent } = decided;
        let receipt = spent.map(|spent| receipt::issue(&spent, decision.cost, keys, signer));
        Self { policy, decision, receipt, degraded: None }
    }

    pub fn allowed(&self) -> bool {
        self.decision.allowed()
    }

    /// Each limit's name with how it stands.
    pub fn limits(&self) -> impl Iterator<Item = (&str, &LimitReport)> {
        let names = self.policy.policy().limits().iter().map(|limit| limit.name.as_str());
        names.zip(&self.decision.limits)
    }
}
