//! Who is alone with a lane goes without it.
//!
//! From the caller's thread to the store's and back takes a quarter of a lone check. So a check of
//! remembered states that finds its lane at rest is made over a connection that the caller's own
//! runtime drives, if that was adopted. It borrows the lane's memory for that, and the lane waits
//! for it as for a batch of its own, within reason. What cannot be done like this, the lane does.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::sync::OwnedMutexGuard;
use tokio::sync::mpsc;

use crate::Inner;
use crate::attempt::{Attempt, Failure};
use crate::error::closed;
use crate::job::Job;
use crate::known::Known;
use crate::session::Session;

/// A lane waits for its memory no longer, and does this batch without. A database that takes longer
/// for a commit has callers who wait anyway.
const LENT_FOR: Duration = Duration::from_millis(100);
/// Adopted runtimes for each lane, at most: each may have a connection.
const MOST_PER_LANE: usize = 2;
/// Until the next try to make a connection that nobody needs but to be faster.
const CONNECT_PAUSE: Duration = Duration::from_secs(10);

/// The way to a lane.
pub(crate) struct ToLane {
    pub(crate) queue: mpsc::Sender<Job>,
    pub(crate) turn: Arc<Turn>,
}

/// Whose turn it is: the lane's, or that of one who goes alone. Whoever has the memory.
#[derive(Default)]
pub(crate) struct Turn {
    known: Arc<tokio::sync::Mutex<Known>>,
    /// The last turn was that of one request, and it went well.
    at_rest: AtomicBool,
}

pub(crate) type Loan = OwnedMutexGuard<Known>;

impl Turn {
    pub(crate) fn set_at_rest(&self, at_rest: bool) {
        self.at_rest.store(at_rest, Relaxed);
    }

    /// For the lane, behind who went alone. A blank memory if that takes too long: it is never wrong.
    pub(crate) async fn take(&self) -> Loan {
        if let Some(known) = self.try_take() {
            return known;
        }
        let lent = self.known.clone().lock_owned();
        match tokio::time::timeout(LENT_FOR, lent).await {
            Ok(known) => known,
            Err(_) => Arc::<tokio::sync::Mutex<Known>>::default().lock_owned().await,
        }
    }

    fn try_take(&self) -> Option<Loan> {
        self.known.clone().try_lock_owned().ok()
    }
}

/// A connection for each adopted runtime, made when somebody is first alone there.
#[derive(Default)]
pub(crate) struct OwnSessions(Mutex<Vec<(Id, Arc<Place>)>>);

type Place = tokio::sync::Mutex<Option<Session>>;

impl OwnSessions {
    fn adopt(&self, runtime: Id, most: usize) {
        let mut places = self.0.lock();
        let is_new = places.iter().all(|(id, _)| *id != runtime);
        if is_new && places.len() < most {
            places.push((runtime, Arc::default()));
        }
    }

    /// That of this runtime, if nobody else uses it now.
    fn take(&self, runtime: Id) -> Option<OwnedMutexGuard<Option<Session>>> {
        let places = self.0.lock();
        let (_, place) = places.iter().find(|(id, _)| *id == runtime)?;
        place.clone().try_lock_owned().ok()
    }

    /// Keeps none of those that nobody uses now: the database may be out of reach.
    pub(crate) fn forget(&self) {
        for (_, place) in &*self.0.lock() {
            if let Ok(mut session) = place.try_lock() {
                *session = None;
            }
        }
    }
}

/// All that is needed to go alone.
struct LoneCheck {
    inner: Arc<Inner>,
    known: Loan,
    session: OwnedMutexGuard<Option<Session>>,
    queue: mpsc::Sender<Job>,
    turn: Arc<Turn>,
}

impl Inner {
    pub(crate) fn adopt(&self, runtime: &Handle) {
        self.own_sessions.adopt(runtime.id(), MOST_PER_LANE * self.settings.lanes);
    }

    /// Does the job without its lane, or gives it back.
    pub(crate) fn go_alone(self: &Arc<Self>, lane: &ToLane, job: Job) -> Option<Job> {
        let Some(check) = self.lone_check(lane, &job) else { return Some(job) };
        // Not by the caller, who may stop waiting or look away: the lane's memory comes back.
        tokio::spawn(check.run(job));
        None
    }

    fn lone_check(self: &Arc<Self>, lane: &ToLane, job: &Job) -> Option<LoneCheck> {
        let turn = &lane.turn;
        let is_empty = lane.queue.capacity() == lane.queue.max_capacity();
        if !(turn.at_rest.load(Relaxed) && is_empty && job.request.is_plain()) {
            return None;
        }
        let runtime = Handle::try_current().ok()?.id();
        let session = self.own_sessions.take(runtime)?;
        let known = turn.try_take().filter(|known| known.may_decide(&job.request))?;
        if session.as_ref().is_none_or(|session| session.is_closed()) {
            self.make_own(session);
            return None;
        }
        let (inner, queue, turn) = (self.clone(), lane.queue.clone(), turn.clone());
        Some(LoneCheck { inner, known, session, queue, turn })
    }

    /// For the next one who is alone here.
    fn make_own(self: &Arc<Self>, mut own: OwnedMutexGuard<Option<Session>>) {
        let inner = self.clone();
        tokio::spawn(async move {
            match inner.connect_session(inner.settings.deadline).await {
                Ok(session) => *own = Some(session),
                Err(error) => {
                    tracing::debug!(%error, "no connection for who is alone");
                    *own = None;
                    tokio::time::sleep(CONNECT_PAUSE).await;
                }
            }
        });
    }
}

impl LoneCheck {
    async fn run(mut self, job: Job) {
        let Job { request, mut back } = job;
        if back.reply.is_closed() {
            return;
        }
        // Lost with every failure: what is in the database then is not known.
        let mut known = std::mem::take(&mut *self.known);
        let done = match &*self.session {
            Some(session) => {
                let (requests, backs) = (slice::from_ref(&request), slice::from_mut(&mut back));
                let mut attempt = Attempt { session, requests, backs, impatient: false };
                self.inner.run_known(&mut attempt, &mut known).await
            }
            None => Ok(None),
        };
        if done.is_ok() {
            *self.known = known;
        }
        match done {
            Ok(Some(mut answers)) => {
                let answer = answers.pop().unwrap_or_else(|| Err(closed()));
                // First, for a caller who asks again at once.
                drop(self);
                // Gone callers need no answer.
                let _ = back.reply.send(answer);
            }
            Err(Failure::Undone(error)) => {
                let _ = back.reply.send(Err(error));
            }
            Err(Failure::InDoubt(error)) => {
                self.disconnect();
                let _ = back.reply.send(Err(error));
            }
            Err(Failure::Broken(_)) => {
                self.disconnect();
                self.hand_over(Job { request, back }).await;
            }
            Ok(None) | Err(Failure::Locked) => self.hand_over(Job { request, back }).await,
        }
    }

    /// The lane finds out whether the database is there.
    fn disconnect(&mut self) {
        self.turn.set_at_rest(false);
        let inner = &self.inner;
        if let Some(session) = self.session.take()
            && !session.is_closed()
        {
            inner.connector.cancel(session.cancel_token(), inner.settings.deadline);
        }
        inner.own_sessions.forget();
    }

    /// Nothing happened: to the lane.
    async fn hand_over(self, job: Job) {
        let Self { queue, known, session, .. } = self;
        drop((known, session));
        // A lane that has ended answers nobody.
        let _ = queue.send(job).await;
    }
}
