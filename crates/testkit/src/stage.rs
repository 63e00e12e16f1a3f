//! One store under test with its clock, and what every case does with it.

use std::any::Any;
use std::future::Future;

use tollgate::core::Outcome;
use tollgate::{Answer, Applied, Clock, Instant, Policy, Tollgate};

use crate::clock::ManualClock;
use crate::random;

/// Attributes of a subject.
pub(crate) type Subject<'a> = &'a [(&'a str, &'a str)];

/// An open store and the clock it reads.
#[derive(Debug)]
pub struct Stage {
    pub gate: Tollgate,
    pub clock: ManualClock,
    /// Dropped after the store: the folder of its file, or whatever else it stands on.
    _ground: Option<Box<dyn Any + Send>>,
}

impl From<(Tollgate, ManualClock)> for Stage {
    fn from((gate, clock): (Tollgate, ManualClock)) -> Self {
        Self { gate, clock, _ground: None }
    }
}

impl<G: Send + 'static> From<(Tollgate, ManualClock, G)> for Stage {
    fn from((gate, clock, ground): (Tollgate, ManualClock, G)) -> Self {
        Self { gate, clock, _ground: Some(Box::new(ground)) }
    }
}

/// Opens a store with `open` and plays `case` on it: two workers, so that tasks really race.
pub fn run<O, S, C, F>(open: impl FnOnce() -> O, case: C)
where
    O: Future<Output = S>,
    S: Into<Stage>,
    C: FnOnce(Stage) -> F,
    F: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(async { case(open().await.into()).await });
}

impl Stage {
    /// Puts a policy of a name of its own in force.
    pub async fn trial(&self, toml: &str) -> Trial {
        let trial = Trial { gate: self.gate.clone(), name: random::name("policy") };
        trial.apply(toml).await;
        trial
    }

    /// Runs the clock to `at`; it must not lie behind.
    pub fn wait_until(&self, at: Instant) {
        assert!(at >= self.clock.now(), "waiting never takes time back");
        self.clock.set(at);
    }
}

/// A policy on trial.
#[derive(Clone, Debug)]
pub struct Trial {
    pub gate: Tollgate,
    pub name: String,
}

impl Trial {
    pub async fn apply(&self, toml: &str) -> Applied {
        let policy = Policy::from_toml(&self.name, toml).expect("the case's policy is valid");
        self.gate.apply(&policy, "testkit").await.expect("the store takes the policy")
    }

    pub async fn check(&self, subject: Subject<'_>, cost: u32) -> Answer {
        let answer = self.gate.check(&self.name, subject, cost).await.expect("the store answers");
        assert_eq!(answer.degraded, None, "the store itself answered");
        assert_eq!(answer.receipt.is_some(), answer.allowed(), "what is allowed has a receipt");
        answer
    }

    pub async fn peek(&self, subject: Subject<'_>, cost: u32) -> Answer {
        let answer = self.gate.peek(&self.name, subject, cost).await.expect("the store answers");
        assert_eq!(answer.receipt, None, "a peek spends nothing, so it has no receipt");
        answer
    }

    /// A check that must pass; its receipt.
    pub async fn pass(&self, subject: Subject<'_>, cost: u32) -> String {
        let answer = self.check(subject, cost).await;
        assert!(answer.allowed(), "{subject:?} at cost {cost} is refused: {:?}", answer.decision);
        answer.receipt.expect("what is allowed has a receipt")
    }

    pub async fn pass_times(&self, subject: Subject<'_>, times: u32) {
        for _ in 0..times {
            self.pass(subject, 1).await;
        }
    }

    /// A check that must be refused; when it would pass.
    pub async fn refused_until(&self, subject: Subject<'_>, cost: u32) -> Instant {
        match self.check(subject, cost).await.decision.outcome {
            Outcome::Refused { retry_at } => retry_at,
            other => panic!("{subject:?} at cost {cost} is not refused but {other:?}"),
        }
    }

    /// What each limit says is used.
    pub async fn used(&self, subject: Subject<'_>) -> Vec<u64> {
        let answer = self.peek(subject, 1).await;
        answer.decision.limits.iter().map(|report| report.standing.used).collect()
    }
}

/// What each limit of an answer says is used.
pub(crate) fn used(answer: &Answer) -> Vec<u64> {
    answer.decision.limits.iter().map(|report| report.standing.used).collect()
}
