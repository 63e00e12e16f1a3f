//! Applies decisions in PostgreSQL, in groups, exact for many instances.
//!
//! Checks that arrive while a batch is in flight form the next one. A batch locks its keys in
//! sorted order, reads the database's clock and the epoch of the catalogue behind the locks,
//! decides in memory with the core, writes once and commits once. One whose states are all
//! remembered is decided first, and written by a statement that locks and compares them. Nothing that is right or wrong
//! depends on what a session remembers between transactions, so that PgBouncer can stand in between.

mod alone;
mod attempt;
mod batch;
mod catalogue;
mod clerk;
mod connect;
mod desk;
mod engine;
mod error;
mod job;
mod known;
mod lane;
mod migrate;
mod neighbour;
mod once;
mod pool;
mod pooler;
mod refusals;
mod session;
mod settings;
mod shield;
#[cfg(feature = "simulation")]
mod simulation;
mod slots;
mod sweep;
mod time;

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tollgate_core::store::{
    Ask, Checked, Clock, Decided, Once, SpendId, Stats, StatsReading, StoreError, StoreErrorKind,
};
use tollgate_core::{Instant, Intent};

pub use migrate::{Migration, Migrations, doors};
pub use neighbour::Neighbour;
pub use refusals::{Ledger, Raised, Refused, Rule};
pub use settings::{BadUrl, Settings};
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub use simulation::{Stream, World};

use alone::{OwnSessions, ToLane, Turn};
use clerk::Clerks;
use connect::Connector;
use desk::Desks;
use engine::Engine;
use error::{closed, timed_out};
use job::{Answer, Back, Job, Render, Request, Work};
use lane::Lane;
use session::{Session, Statements};
use shield::Shield;
use time::Time;

/// The PostgreSQL store. Every instance on the same database and schema shares its counts.
pub struct Postgres {
    inner: Arc<Inner>,
    lanes: Vec<ToLane>,
    clerks: Clerks,
    hasher: foldhash::fast::FixedState,
    sweeper: JoinHandle<()>,
    /// Last: it ends what the others wait for.
    _engine: Engine,
}

pub(crate) struct Inner {
    settings: Settings,
    connector: Connector,
    statements: Statements,
    time: Time,
    shield: Shield,
    stats: Stats,
    /// About how many keys the database holds.
    keys: AtomicU64,
    /// Names this run in receipts.
    run: u64,
    sequence: AtomicU64,
    desks: Desks,
    own_sessions: OwnSessions,
    engine: Handle,
    closed: AtomicBool,
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Postgres")
            .field("schema", &self.inner.settings.schema)
            .finish_non_exhaustive()
    }
}

impl Postgres {
    /// Connects, and brings the schema up to date. `clock` replaces the database's: for tests.
    pub async fn open(
        settings: Settings,
        clock: Option<Arc<dyn Clock>>,
    ) -> Result<Self, StoreError> {
        let run = getrandom::u64().map_err(|error| {
            StoreError::new(StoreErrorKind::Unavailable, "the system gave no random bytes")
                .with_source(error)
        })?;
        let connector = Connector::new(&settings)?;
        Self::start(settings, clock, connector, run, Engine::start).await
    }

    /// The same with a simulated network, thread and chance: see [`World`].
    #[cfg(feature = "simulation")]
    #[doc(hidden)]
    pub async fn open_in(settings: Settings, world: Arc<dyn World>) -> Result<Self, StoreError> {
        let run = world.number();
        let connector = Connector::new(&settings)?.within(world);
        let store = Self::start(settings, None, connector, run, || Ok(Engine::here())).await?;
        // There is no other, and this is to be simulated, too.
        store.adopt_runtime(&Handle::current());
        Ok(store)
    }

    async fn start(
        settings: Settings,
        clock: Option<Arc<dyn Clock>>,
        connector: Connector,
        run: u64,
        engine: impl FnOnce() -> Result<Engine, StoreError>,
    ) -> Result<Self, StoreError> {
        let engine = engine()?;
        let inner = Arc::new(Inner {
            connector,
            statements: Statements::new(&settings),
            time: Time::new(clock),
            shield: Shield::default(),
            stats: Stats::default(),
            keys: AtomicU64::new(0),
            run,
            sequence: AtomicU64::new(0),
            desks: Desks::default(),
            own_sessions: OwnSessions::default(),
            engine: engine.handle.clone(),
            closed: AtomicBool::new(false),
            settings,
        });
        inner.migrate().await?;
        let lanes = (0..inner.settings.lanes)
            .map(|_| {
                let (queue, jobs) = mpsc::channel(inner.settings.queue);
                let turn = Arc::<Turn>::default();
                engine.handle.spawn(Lane::run(inner.clone(), turn.clone(), jobs));
                ToLane { queue, turn }
            })
            .collect();
        let sweeper = engine.handle.spawn(sweep::run(inner.clone()));
        // The same key must always find the same lane.
        let hasher = foldhash::fast::FixedState::default();
        Ok(Self { inner, lanes, clerks: Clerks::default(), hasher, sweeper, _engine: engine })
    }

    /// Decides. An allowed answer comes after it is committed.
    pub async fn check(&self, ask: &Ask<'_>) -> Result<Checked<Decided>, StoreError> {
        if ask.intent == Intent::Spend && self.inner.settings.shield {
            let time = &self.inner.time;
            let repeated = self.inner.shield.repeat(ask, time.steady_micros(), time.swept_at());
            if let Some(decision) = repeated {
                self.inner.stats.shielded();
                return Ok(Checked::Decided(Decided { decision, spent: None }));
            }
        }
        let lane = self.lane_of(ask.claims.get(ask.crux).map(|keyed| keyed.key));
        let work = Work::Check { ask: ask.to_owned(), intent: ask.intent };
        match self.submit(lane, Request { work, once: None }, None).await? {
            Answer::Checked(Checked::Decided(Once::Fresh(decided))) => {
                Ok(Checked::Decided(decided))
            }
            Answer::Checked(Checked::Stale(asked_by)) => Ok(Checked::Stale(asked_by)),
            other => unreachable!("a check without an idempotency key is answered by {other:?}"),
        }
    }

    /// About what the database's clock shows.
    pub fn now(&self) -> Instant {
        self.inner.time.now()
    }

    /// The runtime of the store's own thread: there is always somebody who drives it.
    pub fn runtime(&self) -> &Handle {
        &self.inner.engine
    }

    /// Lets checks that come alone on this runtime go over a connection that it drives. It must never
    /// be blocked, and have I/O and time. With too many of them, nothing changes.
    pub fn adopt_runtime(&self, runtime: &Handle) {
        self.inner.adopt(runtime);
    }

    /// Checks and refunds have their answer, or an error, by then; so has one slot.
    pub fn deadline(&self) -> Duration {
        self.inner.settings.deadline
    }

    pub fn stats(&self) -> StatsReading {
        let keys = self.inner.keys.load(Relaxed);
        self.inner.stats.read(usize::try_from(keys).unwrap_or(usize::MAX))
    }

    /// Later calls answer with an error. Everything answered is committed already.
    pub fn close(&self) {
        self.inner.closed.store(true, Relaxed);
        self.sweeper.abort();
    }

    /// The same key always finds the same lane.
    fn lane_of(&self, key: impl Hash) -> usize {
        let lane = self.hasher.hash_one(key) % self.lanes.len() as u64;
        usize::try_from(lane).expect("less than the number of lanes")
    }

    /// Puts a request into a lane and waits for its answer, up to the deadline.
    async fn submit(
        &self,
        lane: usize,
        request: Request,
        render: Option<Render>,
    ) -> Result<Answer, StoreError> {
        self.inner.still_open()?;
        let lane = &self.lanes[lane];
        let (reply, answer) = oneshot::channel();
        let job = Job { request, back: Back { reply, render } };
        let answered = async {
            if let Some(job) = self.inner.go_alone(lane, job) {
                lane.queue.send(job).await.map_err(|_| closed())?;
            }
            answer.await.map_err(|_| closed())?
        };
        tokio::time::timeout(self.inner.settings.deadline, answered)
            .await
            .unwrap_or_else(|_| Err(timed_out()))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    fn still_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Relaxed) { Err(closed()) } else { Ok(()) }
    }

    /// A connection for decisions.
    async fn connect_session(&self, within: Duration) -> Result<Session, StoreError> {
        self.statements.connect(&self.connector, within).await
    }

    fn next_spend_id(&self) -> SpendId {
        SpendId { run: self.run, sequence: self.sequence.fetch_add(1, Relaxed) }
    }
}
