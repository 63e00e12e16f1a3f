//! What happens once: refunds, and requests under an idempotency key.

use tollgate_core::Intent;
use tollgate_core::store::{
    Checked, Decided, Key, Once, OnceKey, OwnedAsk, Receipt, Record, Refunded, StoreError,
};

use crate::Postgres;
use crate::job::{Answer, Effect, Render, Request, Work};

impl Postgres {
    /// Decides unless `once` has an answer already. What is allowed is recorded with `body`, in
    /// the transaction that counts it.
    pub async fn check_once(
        &self,
        once: OnceKey,
        ask: OwnedAsk,
        body: impl FnOnce(&Decided) -> Vec<u8> + Send + 'static,
    ) -> Result<Checked<Once<Decided>>, StoreError> {
        let crux = ask.claims.get(ask.crux).and_then(|claim| Key::parse(&claim.key));
        let lane = self.lane_of(crux);
        let work = Work::Check { ask, intent: Intent::Spend };
        let render: Render = Box::new(move |effect| match effect {
            Effect::Decided(decided) => body(decided),
            Effect::Refunded(_) => unreachable!("a check refunds nothing"),
        });
        match self.submit(lane, Request { work, once: Some(once) }, Some(render)).await? {
            Answer::Checked(checked) => Ok(checked),
            other => unreachable!("a check is answered by {other:?}"),
        }
    }

    /// The answer recorded under `once`, if there is one.
    pub async fn find_once(&self, once: OnceKey) -> Result<Option<Record>, StoreError> {
        let lane = self.lane_of(&once.id);
        let request = Request { work: Work::Find, once: Some(once) };
        match self.submit(lane, request, None).await? {
            Answer::Found(record) => Ok(record),
            other => unreachable!("a look-up is answered by {other:?}"),
        }
    }

    /// Gives a receipt's spend back, the first time it is asked.
    pub async fn refund(&self, receipt: Receipt) -> Result<Refunded, StoreError> {
        match self.give_back(receipt, None, None).await? {
            Once::Fresh(refunded) => Ok(refunded),
            Once::Replay(_) => unreachable!("without an idempotency key nothing is replayed"),
        }
    }

    /// The same under an idempotency key: a refund that was done is replayed.
    pub async fn refund_once(
        &self,
        once: OnceKey,
        receipt: Receipt,
        body: impl FnOnce(Refunded) -> Vec<u8> + Send + 'static,
    ) -> Result<Once<Refunded>, StoreError> {
        let render: Render = Box::new(move |effect| match effect {
            Effect::Refunded(refunded) => body(refunded),
            Effect::Decided(_) => unreachable!("a refund decides nothing"),
        });
        self.give_back(receipt, Some(once), Some(render)).await
    }

    async fn give_back(
        &self,
        receipt: Receipt,
        once: Option<OnceKey>,
        render: Option<Render>,
    ) -> Result<Once<Refunded>, StoreError> {
        // Shared keys are the shortest: nobody's values stand in them.
        let keys = receipt.spends.iter().filter_map(|(key, _)| Key::parse(key));
        let lane = self.lane_of(keys.min_by_key(|key| key.values.len()));
        let request = Request { work: Work::Refund(receipt), once };
        match self.submit(lane, request, render).await? {
            Answer::Refunded(refunded) => Ok(refunded),
            other => unreachable!("a refund is answered by {other:?}"),
        }
    }
}
