//! Keeping up with what other instances change.
//!
//! A shared store says so itself: a decision made from an old catalogue comes back undecided. Only
//! what needs no decision, such as an unknown token or policy, has to ask.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::time::Instant as Stopwatch;
use tollgate_core::Intent;
use tollgate_core::store::{Checked, StoreError, StoreErrorKind};

use crate::answer::Answer;
use crate::compiled::Compiled;
use crate::error::Error;
use crate::gate::Tollgate;
use crate::subject::Attributes;

/// Changes can come faster than they are read only for so long.
const MAX_RELOADS: u32 = 8;
/// Routes that other instances changed are in force after this and one more request.
const ROUTES_MAX_AGE: Duration = Duration::from_secs(1);

/// Lets many callers share one question to the store.
#[derive(Debug)]
pub(crate) struct Refreshes {
    begun: AtomicU64,
    done: AtomicU64,
    /// When routes were last looked at with the catalogue up to date, in milliseconds of `since`.
    routes_ms: AtomicU64,
    since: Stopwatch,
}

impl Default for Refreshes {
    fn default() -> Self {
        Self {
            begun: AtomicU64::default(),
            done: AtomicU64::default(),
            routes_ms: AtomicU64::default(),
            since: Stopwatch::now(),
        }
    }
}

impl Tollgate {
    /// A request that no route is for asks the store nothing, so nothing would tell that another
    /// instance made one. Costs the caller no waiting.
    pub(crate) fn keep_routes_fresh(&self) {
        if !self.shared.store.is_shared() {
            return;
        }
        let Refreshes { routes_ms, since, .. } = &self.shared.refreshes;
        let now_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let last_ms = routes_ms.load(SeqCst);
        let is_due = now_ms.saturating_sub(last_ms) >= ROUTES_MAX_AGE.as_millis() as u64;
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if is_due && routes_ms.compare_exchange(last_ms, now_ms, SeqCst, SeqCst).is_ok() {
            let gate = self.clone();
            runtime.spawn(async move {
                if let Err(error) = gate.refresh().await {
                    tracing::debug!(%error, "routes as they were when the store last answered");
                }
            });
        }
    }

    /// Brings policies, overrides and tokens up to date with what other instances changed.
    pub async fn refresh(&self) -> Result<(), Error> {
        if !self.shared.store.is_shared() {
            return Ok(());
        }
        self.in_time(Some(Stopwatch::now()), pin!(self.refresh_now())).await
    }

    async fn refresh_now(&self) -> Result<(), Error> {
        let Refreshes { begun, done, .. } = &self.shared.refreshes;
        let before = begun.load(SeqCst);
        let _changing = self.shared.changing.lock().await;
        if done.load(SeqCst) > before {
            // Somebody asked after we came, and has the answer.
            return Ok(());
        }
        let number = begun.fetch_add(1, SeqCst) + 1;
        let epoch = self.shared.store.epoch().await?;
        if epoch != self.shared.live.load().epoch {
            self.reload_locked().await?;
        }
        done.store(number, SeqCst);
        Ok(())
    }

    /// Reads the catalogue again, unless that was done since somebody asked by this epoch of it.
    /// The store's own epoch says nothing: it goes back with a database that was restored.
    async fn catch_up(&self, asked_by: u64) -> Result<(), Error> {
        let _changing = self.shared.changing.lock().await;
        if self.shared.live.load().epoch != asked_by {
            return Ok(());
        }
        self.reload_locked().await
    }

    /// The policy of this name; if it is not known here, another instance may have just made it, or
    /// made it readable.
    pub(crate) async fn find_policy(&self, name: &str) -> Result<Arc<Compiled>, Error> {
        let found = self.policy(name);
        if !self.may_be_news(&found) {
            return found;
        }
        self.refresh().await?;
        self.policy(name)
    }

    fn may_be_news(&self, found: &Result<Arc<Compiled>, Error>) -> bool {
        matches!(found, Err(Error::NoSuchPolicy(_) | Error::Store(_)))
            && self.shared.store.is_shared()
    }

    /// Asks by the policy as it is in force at the moment of the decision.
    pub(crate) async fn ask(
        &self,
        name: &str,
        subject: Attributes<'_>,
        cost: u32,
        intent: Intent,
    ) -> Result<Answer, Error> {
        let mut call = Call::of(self, name);
        let asking = async {
            loop {
                let policy = call.policy().await?;
                let asked = pin!(self.shared.ask(&policy, subject, cost, intent));
                if let Some(answer) = call.decided(call.in_time(asked).await?)? {
                    return Ok(answer);
                }
            }
        };
        match asking.await {
            Err(error) => self.answer_as_last_known(name, subject, cost, intent, error),
            answered => answered,
        }
    }

    /// What the policy, as last known, says to an error. One that is not known, or cannot be read,
    /// says nothing.
    pub(crate) fn answer_as_last_known(
        &self,
        name: &str,
        subject: Attributes<'_>,
        cost: u32,
        intent: Intent,
        error: Error,
    ) -> Result<Answer, Error> {
        match self.policy(name) {
            Ok(policy) => self.shared.answer_without_store(&policy, subject, cost, intent, error),
            Err(_) => Err(error),
        }
    }

    /// Ends with an error when a call that began at `started` has had its time.
    async fn in_time<T>(
        &self,
        started: Option<Stopwatch>,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let (Some(started), Some(deadline)) = (started, self.shared.store.deadline()) else {
            return work.await;
        };
        let left = deadline.saturating_sub(started.elapsed());
        tokio::time::timeout(left, work).await.unwrap_or_else(|_| {
            let message = "the store did not say in time what there is";
            Err(StoreError::new(StoreErrorKind::Timeout, message).into())
        })
    }
}

/// One call about a policy, which may have to ask several times: again whenever what it asked by
/// turns out not to be in force any more. All of it has the deadline of one call.
pub(crate) struct Call<'a> {
    gate: &'a Tollgate,
    policy: &'a str,
    started: Option<Stopwatch>,
    /// Something was waited for before the store was asked.
    has_waited: bool,
    reloads: u32,
    /// The epoch that was asked by in vain.
    asked_by: Option<u64>,
}

impl<'a> Call<'a> {
    pub(crate) fn of(gate: &'a Tollgate, policy: &'a str) -> Self {
        let started = gate.shared.store.deadline().map(|_| Stopwatch::now());
        Self { gate, policy, started, has_waited: false, reloads: 0, asked_by: None }
    }

    /// The policy to ask by now.
    pub(crate) async fn policy(&mut self) -> Result<Arc<Compiled>, Error> {
        let found = self.gate.policy(self.policy);
        if self.asked_by.is_none() && !self.gate.may_be_news(&found) {
            return found;
        }
        self.has_waited = true;
        let asked_by = self.asked_by.take();
        // Boxed: it is seldom needed, and four times as large as all the rest of a check.
        let find = Box::pin(async {
            if let Some(asked_by) = asked_by {
                self.gate.catch_up(asked_by).await?;
            }
            self.gate.find_policy(self.policy).await
        });
        self.within_deadline(find).await
    }

    /// Waits for the store's answer to a check. The store keeps to the deadline by itself, so there
    /// is a second clock only where time has passed before it was asked. Whoever calls this pins
    /// what is waited for: futures that hold each other grow with every layer.
    pub(crate) async fn in_time<T>(
        &self,
        asked: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if self.has_waited { self.within_deadline(asked).await } else { asked.await }
    }

    pub(crate) async fn within_deadline<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.gate.in_time(self.started, work).await
    }

    /// `None`: to be asked again.
    pub(crate) fn decided<T>(&mut self, asked: Checked<T>) -> Result<Option<T>, Error> {
        match asked {
            Checked::Decided(answer) => Ok(Some(answer)),
            Checked::Stale(asked_by) if self.reloads < MAX_RELOADS => {
                self.reloads += 1;
                self.asked_by = Some(asked_by);
                Ok(None)
            }
            Checked::Stale(_) => Err(changing_too_fast()),
        }
    }
}

pub(crate) fn changing_too_fast() -> Error {
    let message = "the policies change faster than they can be read; ask again in a moment";
    StoreError::new(StoreErrorKind::Contended, message).into()
}
