//! What a store is asked and what it answers: plain data, shared by every store.

mod key;
mod slots;
mod stats;

use std::error::Error;
use std::fmt;

use smallvec::SmallVec;

use crate::decide::{Claim, Intent};
use crate::decision::{Decision, INLINE_LIMITS};
use crate::limit::{Cost, Quota, Rule};
use crate::state::Spend;
use crate::time::Instant;

pub use key::{Key, is_same};
pub use slots::{
    Assigned, Drift, Recount, ScheduleAsk, Slot, SlotAnswer, SlotAsk, SlotQuery, WindowFill,
    assign_all, count_again, first_window, give_back, repeat,
};
pub use stats::{BATCH_SIZE_BOUNDS, Stats, StatsReading};

/// Gives `now`. The only way time enters a store.
pub trait Clock: Send + Sync + fmt::Debug {
    fn now(&self) -> Instant;
}

/// One request: a cost against several keys, all or nothing.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub intent: Intent,
    pub cost: Cost,
    pub durability: Durability,
    /// Of the catalogue this was made from; `None` if it depends on no catalogue.
    pub epoch: Option<u64>,
    /// The claim whose key this request most contends for: one that all requests of its policy
    /// share, if there is one.
    pub crux: usize,
    /// Claims on distinct keys.
    pub claims: &'a [KeyedClaim<'a>],
}

impl Ask<'_> {
    /// The same for as long as it takes.
    pub fn to_owned(&self) -> OwnedAsk {
        OwnedAsk {
            cost: self.cost,
            epoch: self.epoch,
            crux: self.crux,
            claims: self
                .claims
                .iter()
                .map(|keyed| OwnedClaim {
                    rule: keyed.claim.rule.clone(),
                    quota: *keyed.claim.quota,
                    shadow: keyed.claim.shadow,
                    key: keyed.key.to_vec(),
                })
                .collect(),
        }
    }
}

/// A request that outlives its caller's borrow.
#[derive(Clone, Debug)]
pub struct OwnedAsk {
    pub cost: Cost,
    pub epoch: Option<u64>,
    pub crux: usize,
    pub claims: Vec<OwnedClaim>,
}

#[derive(Clone, Debug)]
pub struct OwnedClaim {
    pub rule: Rule,
    pub quota: Quota,
    pub shadow: bool,
    pub key: Vec<u8>,
}

impl OwnedAsk {
    pub fn claims(&self) -> SmallVec<[KeyedClaim<'_>; INLINE_LIMITS]> {
        self.claims
            .iter()
            .map(|owned| KeyedClaim {
                claim: Claim { rule: &owned.rule, quota: &owned.quota, shadow: owned.shadow },
                key: Key::parse(&owned.key).expect("it was a key before it was owned"),
            })
            .collect()
    }
}

/// What a store shared by several instances answers to a request made from a catalogue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Checked<T> {
    Decided(T),
    /// It was made from this epoch, and the catalogue is of another: nothing was decided.
    Stale(u64),
}

/// A claim and the key it counts under.
#[derive(Clone, Copy, Debug)]
pub struct KeyedClaim<'a> {
    pub claim: Claim<'a>,
    pub key: Key<'a>,
}

impl<'a> AsRef<Claim<'a>> for KeyedClaim<'a> {
    fn as_ref(&self) -> &Claim<'a> {
        &self.claim
    }
}

/// When an allowed decision is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// At once; a crash may forget the last moments, within the store's documented bound.
    #[default]
    Interval,
    /// After it is on disk.
    Sync,
}

/// Names one spend for ever: the run of the store that decided it, and its place in that run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SpendId {
    pub run: u64,
    pub sequence: u64,
}

/// A decision and, if it was allowed and counted, what a receipt is made of.
#[derive(Clone, Debug)]
pub struct Decided {
    pub decision: Decision,
    pub spent: Option<Spent>,
}

/// What one decision spent, by the position of its claims.
#[derive(Clone, Debug)]
pub struct Spent {
    pub id: SpendId,
    pub spends: SmallVec<[Spend; INLINE_LIMITS]>,
}

/// Everything needed to take one decision's spend back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receipt {
    pub id: SpendId,
    pub cost: Cost,
    /// Each key with what was counted under it.
    pub spends: Vec<(Vec<u8>, Spend)>,
}

impl Receipt {
    /// From this instant on there is nothing left to give back.
    pub fn expires_at(&self) -> Instant {
        self.spends.iter().map(|(_, spend)| spend.expires_at()).max().unwrap_or(Instant::MIN)
    }
}

/// What became of a refund.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refunded {
    Done,
    /// This receipt was given back before.
    Already,
    /// Its windows are over.
    Expired,
    /// A crash forgot the spend, so there is nothing to give back.
    Forgotten,
}

/// An answer kept for replay under an idempotency key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Of the request: the same key with another request is a mistake of the caller.
    pub fingerprint: Vec<u8>,
    pub body: Vec<u8>,
}

/// An idempotency key with its scope, and the request made under it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnceKey {
    pub id: Vec<u8>,
    pub fingerprint: Vec<u8>,
    pub expires_at: Instant,
}

/// What came of a request made under an idempotency key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Once<T> {
    /// Decided now. It was recorded if it had an effect.
    Fresh(T),
    /// Decided before: the recorded answer.
    Replay(Record),
}

/// One version of a policy, as kept for audit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyVersion {
    pub name: String,
    pub version: u64,
    /// `None`: this version deleted the policy.
    pub document: Option<String>,
    pub created_by: String,
    pub created_at: Instant,
}

/// What a change of a policy builds on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// Whatever is in force by then.
    Any,
    /// This version, or none at all; nothing is changed if that is no longer so.
    InForce(Option<u64>),
}

impl Base {
    /// Whether a change may be made on top of the newest version there is.
    pub fn holds(self, newest: Option<&PolicyVersion>) -> bool {
        let in_force = newest.filter(|newest| newest.document.is_some());
        self == Self::Any || self == Self::InForce(in_force.map(|newest| newest.version))
    }
}

/// One subject's own maximum for one limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Override {
    pub policy: String,
    pub limit: String,
    /// What the limit counts by, then the values, encoded as in its keys.
    pub values: Vec<u8>,
    /// The attributes as people read them; private ones are hashed.
    pub subject: String,
    pub max: u64,
    pub created_by: String,
    pub created_at: Instant,
}

/// An access token, known only by its hash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    pub hash: Vec<u8>,
    pub name: String,
    pub scope: String,
    pub created_at: Instant,
}

/// Everything but counts that a store keeps in force.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Catalogue {
    /// Grows with every change, on a store that several instances share.
    pub epoch: u64,
    /// The newest version of each policy, deleted ones included.
    pub policies: Vec<PolicyVersion>,
    pub overrides: Vec<Override>,
    pub tokens: Vec<Token>,
    /// Made once per store: the key for receipts and private attributes.
    pub secret: Vec<u8>,
}

/// The store could not answer. Refusals are not errors.
#[derive(Debug, Clone)]
pub struct StoreError(Box<Fault>);

/// Boxed: every decision makes room for an error that hardly ever comes.
#[derive(Debug, Clone)]
struct Fault {
    kind: StoreErrorKind,
    message: String,
    source: Option<std::sync::Arc<dyn Error + Send + Sync>>,
}

/// Why the store could not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreErrorKind {
    /// It is down, full or read-only.
    Unavailable,
    /// It did not answer in time.
    Timeout,
    /// Somebody else holds what it needs.
    Contended,
    /// What it holds is not what it wrote.
    Corrupt,
}

impl StoreError {
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Fault { kind, message: message.into(), source: None }))
    }

    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(std::sync::Arc::new(source));
        self
    }

    pub fn kind(&self) -> StoreErrorKind {
        self.0.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
