//! `Tollgate`: a store with its policies, ready to answer.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tollgate_core::store::{Clock, Override, Refunded, StatsReading, StoreError, Token};
use tollgate_core::{Decision, Instant, Intent};
use tollgate_store_embedded::SystemClock;

use crate::answer::Answer;
use crate::compiled::Compiled;
use crate::error::Error;
use crate::limiter::{Asked, Limiter};
use crate::local::Local;
use crate::offenders::Watcher;
use crate::policy::Policy;
use crate::receipt;
use crate::refresh::Refreshes;
use crate::routes::Matched;
use crate::routes::table::Table;
use crate::secret::Keyed;
use crate::store::{self, Store};
use crate::subject::Attributes;

/// Answers when something may happen. Cheap to clone; all clones share one store.
#[derive(Clone, Debug)]
pub struct Tollgate {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) live: ArcSwap<Live>,
    /// One change of the catalogue at a time, so that a reload never goes back.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// How often the epoch was asked for, to share the answers.
    pub(crate) refreshes: Refreshes,
    pub(crate) signer: Keyed,
    pub(crate) privacy: Keyed,
    pub(crate) local: Local,
    pub(crate) watcher: Watcher,
}

/// Everything in force but counts.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) policies: HashMap<String, Arc<Compiled>, foldhash::fast::RandomState>,
    /// Stored policies that this version cannot read.
    pub(crate) unreadable: HashMap<String, Unreadable>,
    pub(crate) routes: Table,
    pub(crate) overrides: Vec<Override>,
    pub(crate) tokens: Vec<Token>,
    /// No policy was ever stored, not even one since deleted.
    pub(crate) is_new: bool,
    pub(crate) epoch: u64,
}

#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) version: u64,
    /// What its checks are answered with.
    pub(crate) error: StoreError,
}

impl Tollgate {
    /// Opens a store by URL: `memory:`, `sqlite:PATH` or `postgres://USER@HOST/DATABASE`.
    pub async fn open(url: &str) -> Result<Self, Error> {
        Self::start(url, None).await
    }

    /// The same by another clock than the store's own: for tests.
    pub async fn open_with_clock(url: &str, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        Self::start(url, Some(clock)).await
    }

    async fn start(url: &str, clock: Option<Arc<dyn Clock>>) -> Result<Self, Error> {
        let store = store::open(url, clock.clone()).await?;
        Self::on(store, clock).await
    }

    /// On PostgreSQL, in a simulated world: for testkit.
    #[cfg(feature = "simulation")]
    #[doc(hidden)]
    pub async fn open_in(
        url: &str,
        world: Arc<dyn tollgate_store_postgres::World>,
    ) -> Result<Self, Error> {
        Self::on(store::open_in(url, world).await?, None).await
    }

    /// What a subject counts under, limit by limit: for testkit.
    #[cfg(feature = "simulation")]
    #[doc(hidden)]
    pub fn keys_of(&self, policy: &str, subject: Attributes<'_>) -> Result<Vec<Vec<u8>>, Error> {
        let policy = self.policy(policy)?;
        let mut keys = crate::compiled::Keys::new();
        policy.write_keys(subject, &self.shared.privacy, &mut keys)?;
        let limits = policy.policy().limits().len();
        Ok((0..limits).map(|position| keys.get(position).to_vec()).collect())
    }

    async fn on(store: Store, clock: Option<Arc<dyn Clock>>) -> Result<Self, Error> {
        let clock = clock.unwrap_or_else(|| Arc::new(SystemClock));
        let catalogue = store.catalogue().await?;
        let signer = Keyed::derive(&catalogue.secret, "receipt");
        let privacy = Keyed::derive(&catalogue.secret, "private attribute");
        let live = Live::from_catalogue(catalogue, &Live::default(), &privacy);
        let live = ArcSwap::from_pointee(live);
        let local = Local::new(store.quiet());
        let shared = Shared {
            store,
            clock,
            live,
            changing: tokio::sync::Mutex::default(),
            refreshes: Refreshes::default(),
            signer,
            privacy,
            local,
            watcher: Watcher::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// May it happen now? If so, it is counted, in every limit of the policy.
    pub async fn check(
        &self,
        policy: &str,
        subject: Attributes<'_>,
        cost: u32,
    ) -> Result<Answer, Error> {
        self.ask(policy, subject, cost, Intent::Spend).await
    }

    /// Might it happen now? Nothing is counted.
    pub async fn peek(
        &self,
        policy: &str,
        subject: Attributes<'_>,
        cost: u32,
    ) -> Result<Answer, Error> {
        self.ask(policy, subject, cost, Intent::Peek).await
    }

    /// A check without a runtime and without a receipt: see [`Limiter::check_blocking`].
    pub fn check_blocking(
        &self,
        policy: &str,
        subject: Attributes<'_>,
        cost: u32,
    ) -> Result<Decision, Error> {
        if !self.shared.store.is_shared() {
            let live = self.shared.live.load();
            let compiled = live.policy(policy)?;
            let mut decision = Decision::blank();
            match self.shared.ask_blocking(compiled, subject, cost, &mut decision) {
                Asked::Answered => return Ok(decision),
                Asked::Failed(error) => return Err(*error),
                Asked::NeedsRuntime => (),
            }
        }
        let checked = self.check(policy, subject, cost);
        self.shared.store.block_on(checked).map(|answer| answer.decision)
    }

    /// Gives back what a receipt's decision spent, the first time it is asked.
    pub async fn refund(&self, receipt: &str) -> Result<Refunded, Error> {
        let receipt = receipt::verify(receipt, &self.shared.signer)?;
        Ok(self.shared.store.refund(receipt).await?)
    }

    /// Checks against a policy value that is stored nowhere. It counts under the policy's name.
    pub fn limiter(&self, policy: Policy) -> Limiter {
        let compiled = Compiled::new(policy, 0, Instant::MIN, None);
        Limiter::new(self.shared.clone(), Arc::new(compiled))
    }

    /// The same, but it counts under a namespace and the policy's name: apart from every stored
    /// policy, whatever that is called. For programs whose users name policies too. Answers show the
    /// policy's name alone.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tollgate::{Policy, Tollgate};
    /// # let gate = Tollgate::open("memory:").await?;
    /// let policy = Policy::from_toml("jobs", r#"limits = [{ name = "all", max = 1, per = "1d" }]"#)?;
    /// gate.apply(&policy, "me").await?;
    /// assert!(gate.check("jobs", &[], 1).await?.decision.allowed());
    /// assert!(gate.limiter_in("internal", policy).check(&[], 1).await?.decision.allowed());
    /// # Ok(()) }
    /// ```
    pub fn limiter_in(&self, namespace: &str, policy: Policy) -> Limiter {
        let compiled = Compiled::new(policy, 0, Instant::MIN, None).counted_in(namespace);
        Limiter::new(self.shared.clone(), Arc::new(compiled))
    }

    /// A stored policy as it is now.
    pub fn policy(&self, name: &str) -> Result<Arc<Compiled>, Error> {
        self.shared.live.load().policy(name).cloned()
    }

    /// The policy that answers for a request, by the most specific of all routes in force; `None`
    /// if no route is for it. The path may be a whole request target, with a query. On a store that
    /// several instances share, routes that another one changed are known a second later.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tollgate::Error> {
    /// # use tollgate::{Policy, Tollgate};
    /// # let gate = Tollgate::open("memory:").await?;
    /// let policy = r#"
    ///     routes = ["/users/{id}", "POST /users"]
    ///     limits = [{ name = "route", max = 2, per = "60s", by = ["route"] }]"#;
    /// gate.apply(&Policy::from_toml("users", policy)?, "me").await?;
    /// let matched = gate.route("GET", "/users/7?full=1").expect("there is a route");
    /// assert_eq!((matched.pattern(), matched.param("id")), ("/users/{id}", Some("7")));
    /// assert!(gate.route("GET", "/users").is_none());
    /// # Ok(()) }
    /// ```
    pub fn route(&self, method: &str, path: &str) -> Option<Matched> {
        self.keep_routes_fresh();
        self.shared.live.load().routes.find(method, path)
    }

    /// The clock that decisions are made by.
    pub fn now(&self) -> Instant {
        self.shared.store.now()
    }

    /// An error if the store cannot answer.
    pub async fn ping(&self) -> Result<(), Error> {
        Ok(self.shared.store.ping().await?)
    }

    pub fn stats(&self) -> StatsReading {
        self.shared.store.stats()
    }

    /// On PostgreSQL, lets checks that come one at a time on this runtime go over a connection that it
    /// drives, which spares each of them the way to the store's own thread and back. For a runtime
    /// that has I/O and time and never waits for anything but tasks: no `block_on`, no long computing.
    /// Two for each lane can be adopted; more change nothing.
    pub fn adopt_runtime(&self, runtime: &Handle) {
        self.shared.store.adopt_runtime(runtime);
    }

    /// Removes every key that is idle now, instead of in passing.
    pub async fn sweep(&self) -> Result<(), Error> {
        Ok(self.shared.store.sweep().await?)
    }

    /// Makes everything decided durable and closes the store. Later calls answer with an error.
    pub fn close(&self) {
        self.shared.store.close();
    }
}
