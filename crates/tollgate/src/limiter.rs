//! One policy at hand, stored or not: what everything else checks through.

use std::sync::Arc;

use tollgate_core::store::{Ask, Checked, KeyedClaim, StoreError};
use tollgate_core::{Cost, Decision, Intent, Outcome, State, States, decide};

use crate::answer::{Answer, Degraded};
use crate::compiled::{Claims, Compiled, Keys};
use crate::error::{BadSubject, Error};
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
        let mut decision = Decision::blank();
        self.check_into(subject, cost, &mut decision)?;
        Ok(decision)
    }

    /// The same, written over a decision that the caller has: for whoever asks millions of times a
    /// second, since handing out a new one takes a good part of a check. After an error it says nothing.
    pub fn check_into(
        &self,
        subject: Attributes<'_>,
        cost: u32,
        decision: &mut Decision,
    ) -> Result<(), Error> {
        match self.shared.ask_blocking(&self.policy, subject, cost, decision) {
            Asked::Answered => Ok(()),
            Asked::Failed(error) => {
                *decision = Decision::blank();
                Err(*error)
            }
            Asked::NeedsRuntime => self.check_by_runtime(subject, cost, decision),
        }
    }

    /// Apart, for the room that its future takes would cost every check a tenth.
    #[cold]
    fn check_by_runtime(
        &self,
        subject: Attributes<'_>,
        cost: u32,
        decision: &mut Decision,
    ) -> Result<(), Error> {
        *decision = Decision::blank();
        *decision = self.shared.store.block_on(self.check(subject, cost))?.decision;
        Ok(())
    }
}

/// What came of asking without a runtime. In a word, so that handing it on costs nothing.
pub(crate) enum Asked {
    Answered,
    Failed(Box<Error>),
    /// This store cannot be asked that way.
    NeedsRuntime,
}

impl Asked {
    #[cold]
    fn failed(error: Error) -> Self {
        Self::Failed(Box::new(error))
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

    pub(crate) fn ask_blocking(
        &self,
        policy: &Arc<Compiled>,
        subject: Attributes<'_>,
        cost: u32,
        decision: &mut Decision,
    ) -> Asked {
        let Some(cost) = Cost::new(cost) else { return Asked::failed(Error::ZeroCost) };
        // Most policies have one limit, and for those a check is short: nothing else stands in its way.
        let asked = match policy.plain_claim(subject) {
            Some(claim) => self.ask_store(policy, cost, &[claim], decision),
            None => match self.ask_by_claims(policy, subject, cost, decision) {
                Ok(asked) => asked,
                Err(bad) => return Asked::failed(bad.into()),
            },
        };
        match asked {
            None => return Asked::NeedsRuntime,
            Some(Err(error)) => {
                return self.decide_without_store(policy, subject, cost, error, decision);
            }
            Some(Ok(())) if decision.allowed() => self.local.store_answered(),
            Some(Ok(())) => self.record_refusal(policy, subject, decision),
        }
        Asked::Answered
    }

    #[inline(never)]
    fn ask_by_claims(
        &self,
        policy: &Compiled,
        subject: Attributes<'_>,
        cost: Cost,
        decision: &mut Decision,
    ) -> Result<Option<Result<(), StoreError>>, BadSubject> {
        let mut claims = Claims::new();
        if policy.write_plain_claims(subject, &mut claims) {
            return Ok(self.ask_store(policy, cost, &claims, decision));
        }
        let mut keys = Keys::new();
        policy.write_keys(subject, &self.privacy, &mut keys)?;
        let mut claims = Claims::new();
        policy.write_claims(subject, &keys, &mut claims);
        Ok(self.ask_store(policy, cost, &claims, decision))
    }

    #[inline]
    fn ask_store(
        &self,
        policy: &Compiled,
        cost: Cost,
        claims: &[KeyedClaim<'_>],
        decision: &mut Decision,
    ) -> Option<Result<(), StoreError>> {
        self.store.check_blocking(&policy.ask(Intent::Spend, cost, claims), decision)
    }

    #[cold]
    fn decide_without_store(
        &self,
        policy: &Arc<Compiled>,
        subject: Attributes<'_>,
        cost: Cost,
        error: StoreError,
        decision: &mut Decision,
    ) -> Asked {
        let (cost, error) = (cost.get(), error.into());
        match self.answer_without_store(policy, subject, cost, Intent::Spend, error) {
            Ok(answer) => *decision = answer.decision,
            Err(error) => return Asked::failed(error),
        }
        Asked::Answered
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
