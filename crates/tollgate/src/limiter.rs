//! One policy at hand, stored or not: what everything else checks through.

use std::sync::Arc;

use tollgate_core::store::{Ask, Checked, KeyedClaim, StoreError};
use tollgate_core::{Cost, Decision, Intent, Outcome, State, States, decide};

use crate::answer::{Answer, Degraded};
use crate::compiled::{Claims, Compiled, Keys};
use crate::error::Error;
use crate::gate::Shared;
use crate::policy::OnStoreError;
use crate::subject::Attributes;

/// Checks against one policy. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Limiter {
    shared: Arc<Shared>,
    policy: Arc<Compiled>,
}

impl Limiter {
    pub(crate) fn new(shared: Arc<Shared>, policy: Arc<Compiled>) -> Self {
        Self { shared, policy }
    }

    pub fn policy(&self) -> &Arc<Compiled> {
        &self.policy
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// May it happen now? If so, it is counted.
    pub async fn check(&self, subject: Attributes<'_>, cost: u32) -> Result<Answer, Error> {
        self.ask(subject, cost, Intent::Spend).await
    }

    /// Might it happen now? Nothing is counted.
    pub async fn peek(&self, subject: Attributes<'_>, cost: u32) -> Result<Answer, Error> {
        self.ask(subject, cost, Intent::Peek).await
    }

    async fn ask(
        &self,
        subject: Attributes<'_>,
        cost: u32,
        intent: Intent,
    ) -> Result<Answer, Error> {
        match self.shared.ask(&self.policy, subject, cost, intent).await {
            Ok(Checked::Decided(answer)) => Ok(answer),
            Ok(Checked::Stale(_)) => unreachable!("a policy stored nowhere is of no epoch"),
            Err(error) => {
                self.shared.answer_without_store(&self.policy, subject, cost, intent, error)
            }
        }
    }

    /// A check without a runtime and without a receipt. In memory it never blocks; on a file it
    /// waits for the disk where `durability` says so, and where the disk is behind by 100 ms. On
    /// PostgreSQL it waits for the answer, and only on a thread that no runtime runs on. If
    /// the store cannot answer, the policy's `on_store_error` says what then, as for [`Self::check`].
    pub fn check_blocking(&self, subject: Attributes<'_>, cost: u32) -> Result<Decision, Error> {
        // One place for the decision from here to the core, so that it is never copied.
        let mut answer = Ok(Decision::blank());
        let Ok(decision) = &mut answer else { unreachable!("it was just made") };
        match self.shared.ask_blocking(&self.policy, subject, cost, decision) {
            Some(Ok(())) => (),
            Some(Err(error)) => answer = Err(error),
            None => {
                let checked = self.check(subject, cost);
                answer = self.shared.store.block_on(checked).map(|answer| answer.decision);
            }
        }
        answer
    }
}

impl Shared {
    /// What the store says. If it cannot answer: [`Self::answer_without_store`].
    pub(crate) async fn ask(
        &self,
        policy: &Arc<Compiled>,
        subject: Attributes<'_>,
        cost: u32,
        intent: Intent,
    ) -> Result<Checked<Answer>, Error> {
        let cost = Cost::new(cost).ok_or(Error::ZeroCost)?;
        let mut keys = Keys::new();
        policy.write_keys(subject, &self.privacy, &mut keys)?;
        let mut claims = Claims::new();
        policy.write_claims(subject, &keys, &mut claims);
        let ask = policy.ask(intent, cost, &claims);
        let decided = match self.store.check(&ask).await? {
            Checked::Decided(decided) => decided,
            Checked::Stale(asked_by) => return Ok(Checked::Stale(asked_by)),
        };
        // A refusal may be one that was repeated from memory.
        if decided.decision.allowed() {
            self.local.store_answered();
        }
        let answer = Answer::new(policy.clone(), decided, &keys, &self.signer);
        if intent == Intent::Spend {
            self.watcher.decided(policy, &keys, &answer.decision);
        }
        Ok(Checked::Decided(answer))
    }

    /// What the policy says to answer if this error is the store's. Any other is the answer.
    pub(crate) fn answer_without_store(
        &self,
        policy: &Arc<Compiled>,
        subject: Attributes<'_>,
        cost: u32,
        intent: Intent,
        error: Error,
    ) -> Result<Answer, Error> {
        let (Error::Store(_), Some(cost)) = (&error, Cost::new(cost)) else { return Err(error) };
        let mut keys = Keys::new();
        if policy.write_keys(subject, &self.privacy, &mut keys).is_err() {
            // Of a subject that no longer fits, only the store knows what was answered before.
            return Err(error);
        }
        let mut claims = Claims::new();
        policy.write_claims(subject, &keys, &mut claims);
        let answer = self.degrade(policy, &policy.ask(intent, cost, &claims), error)?;
        if intent == Intent::Spend {
            self.watcher.decided(policy, &keys, &answer.decision);
        }
        Ok(answer)
    }

    /// `None`: this store cannot be asked without its runtime.
    pub(crate) fn ask_blocking(
        &self,
        policy: &Arc<Compiled>,
        subject: Attributes<'_>,
        cost: u32,
        decision: &mut Decision,
    ) -> Option<Result<(), Error>> {
        let Some(cost) = Cost::new(cost) else { return Some(Err(Error::ZeroCost)) };
        let check = |claims: &[KeyedClaim<'_>], decision: &mut Decision| {
            self.store.check_blocking(&policy.ask(Intent::Spend, cost, claims), decision)
        };
        let mut claims = Claims::new();
        let asked = if let Some(claim) = policy.plain_claim(subject) {
            check(&[claim], decision)?
        } else if policy.write_plain_claims(subject, &mut claims) {
            check(&claims, decision)?
        } else {
            let mut keys = Keys::new();
            if let Err(bad) = policy.write_keys(subject, &self.privacy, &mut keys) {
                return Some(Err(bad.into()));
            }
            let mut claims = Claims::new();
            policy.write_claims(subject, &keys, &mut claims);
            check(&claims, decision)?
        };
        Some(match asked {
            Ok(()) => {
                if decision.allowed() {
                    self.local.store_answered();
                } else {
                    self.record_refusal(policy, subject, decision);
                }
                Ok(())
            }
            Err(error) => self.decide_without_store(policy, subject, cost, error, decision),
        })
    }

    #[cold]
    fn decide_without_store(
        &self,
        policy: &Arc<Compiled>,
        subject: Attributes<'_>,
        cost: Cost,
        error: StoreError,
        decision: &mut Decision,
    ) -> Result<(), Error> {
        let (cost, error) = (cost.get(), error.into());
        let answer = self.answer_without_store(policy, subject, cost, Intent::Spend, error)?;
        *decision = answer.decision;
        Ok(())
    }

    #[cold]
    fn record_refusal(&self, policy: &Arc<Compiled>, subject: Attributes<'_>, decision: &Decision) {
        let mut keys = Keys::new();
        if policy.write_keys(subject, &self.privacy, &mut keys).is_ok() {
            self.watcher.decided(policy, &keys, decision);
        }
    }

    /// The store could not answer: the policy says what then.
    fn degrade(
        &self,
        policy: &Arc<Compiled>,
        ask: &Ask<'_>,
        error: Error,
    ) -> Result<Answer, Error> {
        self.local.store_failed();
        let (decision, degraded) = match policy.policy().on_store_error() {
            OnStoreError::Refuse => return Err(error),
            OnStoreError::Allow => (self.allow_uncounted(ask), Degraded::Allowed),
            OnStoreError::Local => (self.local.check(ask, &self.clock)?, Degraded::Local),
        };
        self.local.warn(policy.policy().name(), degraded, &error);
        Ok(Answer { policy: policy.clone(), decision, receipt: None, degraded: Some(degraded) })
    }

    /// As an untouched key would answer; a cost that can never fit stays impossible.
    fn allow_uncounted(&self, ask: &Ask<'_>) -> Decision {
        let now = self.store.now();
        let decision = decide(ask.claims, &mut NoStates, Intent::Peek, ask.cost, now);
        debug_assert!(!matches!(decision.outcome, Outcome::Refused { .. }));
        decision
    }
}

/// Nothing was ever counted, and nothing can be.
struct NoStates;

impl States for NoStates {
    fn get(&self, _: usize) -> Option<&State> {
        None
    }

    fn get_or_insert_with(&mut self, _: usize, _: impl FnOnce() -> State) -> &mut State {
        unreachable!("a peek changes no state")
    }
}
