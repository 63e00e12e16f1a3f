//! Applies decisions in one process, durable in a SQLite file.
//!
//! Counts live in memory, behind sharded locks, and are decided there; one thread, the keeper,
//! commits what was decided to the file in groups. The file always holds a moment that really was:
//! a prefix of the decisions. Deliberately absent: any way to read the file while it is in use.

mod catalogue;
mod clock;
mod error;
mod file;
mod fold;
mod journal;
mod keeper;
mod once;
mod shards;
mod slots;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, Wake};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tollgate_core::store::{
    Ask, Clock, Decided, SpendId, Spent, Stats, StatsReading, StoreError, StoreErrorKind,
};
use tollgate_core::{Decision, Instant, Intent, decide_into, decide_one};

pub use clock::SystemClock;

use error::stopped;
use file::Home;
use journal::{Committed, Journal};
use keeper::{Keeper, Txn};
use shards::{KeyedState, Shards};

/// The embedded store. Dropping it commits what was decided and closes the file.
pub struct Embedded {
    inner: Arc<Inner>,
    keeper: Mutex<Option<JoinHandle<()>>>,
    /// Held by whoever verifies slots.
    recounting: tokio::sync::Mutex<()>,
}

pub(crate) struct Inner {
    home: Home,
    shards: Shards,
    journal: Journal,
    clock: Arc<dyn Clock>,
    /// The latest instant until which something mattered that is gone now, so no decision may be
    /// made before it. Not the clock's reading at a sweep: one that was ahead would stop all time.
    swept_at_micros: AtomicI64,
    /// Names this run of the store in receipts.
    run: u64,
    stats: Stats,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").field("home", &self.inner.home).finish_non_exhaustive()
    }
}

impl Embedded {
    /// Opens or makes the file. Only one process at a time can.
    pub fn open(path: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        Self::start(Home::File(path.into()), clock)
    }

    /// The same without the file: everything is gone when it is dropped.
    pub fn memory(clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        Self::start(Home::Memory, clock)
    }

    fn start(home: Home, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let connection = file::open(&home)?;
        let shards = Shards::new();
        let unfolded = file::load_counts(&connection, home.path(), &shards)?;
        let swept_at = file::load_swept_at(&connection, home.path())?;
        let run = random_run()?;
        file::begin_run(&connection, home.path(), run, clock.now())?;
        let inner = Arc::new(Inner {
            journal: Journal::new(home != Home::Memory),
            home,
            shards,
            clock,
            swept_at_micros: AtomicI64::new(swept_at.as_micros()),
            run,
            stats: Stats::default(),
        });
        let keeper = Keeper::new(inner.clone(), connection, unfolded);
        let keeper = std::thread::Builder::new()
            .name("tollgate-keeper".into())
            .spawn(move || keeper.run())
            .map_err(|error| {
                StoreError::new(StoreErrorKind::Unavailable, "the keeper thread did not start")
                    .with_source(error)
            })?;
        Ok(Self {
            inner,
            keeper: Mutex::new(Some(keeper)),
            recounting: tokio::sync::Mutex::default(),
        })
    }

    /// Decides. With `Durability::Sync` an allowed answer comes after it is on disk.
    pub async fn check(&self, ask: &Ask<'_>) -> Result<Decided, StoreError> {
        let (decided, committed) = self.inner.check(ask)?;
        if let Some(committed) = committed {
            committed.await.map_err(|_| stopped())??;
        }
        Ok(decided)
    }

    /// The same for callers without a runtime, and without what a receipt is made of. In `memory:`
    /// it never blocks.
    #[inline]
    pub fn check_blocking(&self, ask: &Ask<'_>, decision: &mut Decision) -> Result<(), StoreError> {
        let inner = &*self.inner;
        if inner.journal.keeps_counts() {
            return inner.check_and_wait(ask, decision);
        }
        inner.decide(ask, decision, None::<fn(&[KeyedState<'_>])>)
    }

    /// The clock decisions are made by.
    pub fn now(&self) -> Instant {
        self.inner.now()
    }

    /// Whether the store can answer.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.run(|_| Ok(())).await
    }

    pub fn stats(&self) -> StatsReading {
        self.inner.stats.read(self.inner.shards.len())
    }

    /// Removes every key that is idle now, instead of waiting for the keeper to come by.
    pub fn sweep(&self) {
        let now = self.inner.now();
        for shard in 0..Shards::shard_count() {
            self.inner.sweep_shard(shard, now);
        }
    }

    /// Commits what was decided and lets go of the file. Later calls answer with an error.
    pub fn close(&self) {
        self.inner.journal.close();
        if let Some(keeper) = self.keeper.lock().take() {
            let _ = keeper.join();
        }
    }

    /// Runs `job` in the keeper's next transaction and answers once that is committed.
    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Txn<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.inner.journal.submit(Box::new(move |txn| {
            let result = txn.and_then(|txn| txn.attempt(job));
            Box::new(move |committed| {
                let _ = reply.send(committed.and(result));
            })
        }));
        answer.await.map_err(|_| stopped())?
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    fn now(&self) -> Instant {
        self.clock.now().max(self.swept_at())
    }

    fn swept_at(&self) -> Instant {
        Instant::from_micros(self.swept_at_micros.load(Ordering::Relaxed))
    }

    /// Nothing may be decided before `instant` any more: something that mattered until then is gone.
    fn raise_swept_at(&self, instant: Instant) {
        self.swept_at_micros.fetch_max(instant.as_micros(), Ordering::Relaxed);
    }

    /// How many keys went.
    fn sweep_shard(&self, shard: usize, now: Instant) -> usize {
        self.shards.sweep(shard, now, |key, expires_at| {
            // With the shard locked: whoever finds the key gone also finds this.
            self.raise_swept_at(expires_at);
            self.journal.append_removal(key);
        })
    }

    /// Decides, and calls `spent` with the shards still locked if something was and somebody wants
    /// to know.
    #[inline]
    fn decide(
        &self,
        ask: &Ask<'_>,
        decision: &mut Decision,
        mut spent: Option<impl FnMut(&[KeyedState<'_>])>,
    ) -> Result<(), StoreError> {
        self.journal.healthy()?;
        // Before the locks, to hold them shorter: the states know if it is late by then.
        let now = self.clock.now();
        if let [keyed] = ask.claims {
            let known = self.shards.with_one_known(keyed.key, |state| {
                let now = now.max(self.swept_at());
                decide_one(decision, &keyed.claim, state, ask.intent, ask.cost, now);
                if let Some(spent) = &mut spent
                    && spends(ask, decision)
                {
                    spent(&[(keyed.key, state)]);
                }
            });
            if known.is_some() {
                return Ok(());
            }
        }
        self.decide_many(ask, decision, now, spent);
        Ok(())
    }

    /// The same for any number of keys, known or not.
    #[inline(never)]
    fn decide_many(
        &self,
        ask: &Ask<'_>,
        decision: &mut Decision,
        now: Instant,
        mut spent: Option<impl FnMut(&[KeyedState<'_>])>,
    ) {
        let Ask { intent, cost, claims, .. } = *ask;
        let known = self.shards.with_known(claims, |known| {
            let now = now.max(self.swept_at());
            decide_into(decision, claims, known, intent, cost, now);
            if let Some(spent) = &mut spent
                && spends(ask, decision)
            {
                spent(&known.with_keys(claims));
            }
        });
        if known.is_some() {
            return;
        }
        self.shards.with_locked(claims.iter().map(|keyed| keyed.key), |locked| {
            let now = now.max(self.swept_at());
            decide_into(decision, claims, locked, intent, cost, now);
            if let Some(mut spent) = spent
                && spends(ask, decision)
            {
                spent(&locked.states());
            }
        });
    }

    #[inline(never)]
    fn check_and_wait(&self, ask: &Ask<'_>, decision: &mut Decision) -> Result<(), StoreError> {
        let mut committed = None;
        let append = |states: &[KeyedState<'_>]| {
            (_, committed) = self.journal.append(states, ask.durability);
        };
        self.decide(ask, decision, Some(append))?;
        match committed {
            Some(committed) => wait(committed).map_err(|_| stopped())?,
            None => Ok(()),
        }
    }

    fn check(&self, ask: &Ask<'_>) -> Result<(Decided, Option<Committed>), StoreError> {
        let (mut spent, mut committed) = (None, None);
        let mut decision = Decision::blank();
        let append = |states: &[KeyedState<'_>]| {
            let spends = states
                .iter()
                .zip(ask.claims)
                .map(|((_, state), keyed)| state.latest_spend(keyed.claim.quota, ask.cost))
                .collect();
            let sequence;
            (sequence, committed) = self.journal.append(states, ask.durability);
            spent = Some(Spent { id: SpendId { run: self.run, sequence }, spends });
        };
        self.decide(ask, &mut decision, Some(append))?;
        Ok((Decided { decision, spent }, committed))
    }
}

fn spends(ask: &Ask<'_>, decision: &Decision) -> bool {
    decision.allowed() && ask.intent == Intent::Spend
}

/// Waits without a runtime, and inside one too (where tokio's own blocking wait panics).
fn wait<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn random_run() -> Result<u64, StoreError> {
    getrandom::u64().map_err(|error| {
        StoreError::new(StoreErrorKind::Unavailable, "the system gave no random bytes")
            .with_source(error)
    })
}
