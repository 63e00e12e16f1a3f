//! What waits in a lane: a request, and the way back to its caller.

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tollgate_core::store::{
    Checked, Decided, Once, OnceKey, OwnedAsk, Receipt, Record, Refunded, StoreError,
};
use tollgate_core::{INLINE_LIMITS, Intent};

/// One request with its way back.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) back: Back,
}

/// What is asked, once or as often as it is asked.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) work: Work,
    pub(crate) once: Option<OnceKey>,
}

#[derive(Debug)]
pub(crate) enum Work {
    Check {
        ask: OwnedAsk,
        intent: Intent,
    },
    Refund(Receipt),
    /// Only whether there is an answer already.
    Find,
}

impl Request {
    /// The keys it counts under.
    pub(crate) fn keys(&self) -> SmallVec<[&[u8]; INLINE_LIMITS]> {
        match &self.work {
            Work::Check { ask, .. } => ask.claims.iter().map(|claim| &*claim.key).collect(),
            Work::Refund(receipt) => receipt.spends.iter().map(|(key, _)| &**key).collect(),
            Work::Find => SmallVec::new(),
        }
    }

    /// A check like most: it spends, and nobody keeps its answer.
    pub(crate) fn is_plain(&self) -> bool {
        self.once.is_none() && matches!(self.work, Work::Check { intent: Intent::Spend, .. })
    }

    pub(crate) fn only_reads(&self) -> bool {
        matches!(self.work, Work::Check { intent: Intent::Peek, .. })
    }
}

pub(crate) struct Back {
    pub(crate) reply: oneshot::Sender<Result<Answer, StoreError>>,
    /// What to record under the idempotency key.
    pub(crate) render: Option<Render>,
}

pub(crate) type Render = Box<dyn FnOnce(Effect<'_>) -> Vec<u8> + Send>;

/// What a request did, for those who render it.
pub(crate) enum Effect<'a> {
    Decided(&'a Decided),
    Refunded(Refunded),
}

/// Nearly all are the largest: a box would cost them more than it saves the others.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub(crate) enum Answer {
    Checked(Checked<Once<Decided>>),
    Refunded(Once<Refunded>),
    Found(Option<Record>),
}
