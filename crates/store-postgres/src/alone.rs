//! Who is alone with a lane goes without it.
//!
//! From the caller's thread to the store's and back takes a quarter of a lone check. So a check of
//! remembered states that finds its lane at rest is made over a connection that the caller's own
//! runtime drives. It borrows the lane's memory for that, and the lane waits for it as for a batch
//! of its own. What cannot be done like this, the lane does.

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
use crate::lane::RECONNECT_PAUSE;
use crate::session::Session;

/// A lane waits for its memory no longer: a runtime that is kept busy by its owner may not come to
/// give it back. It then begins with a blank one, which is never wrong.
const LENT_FOR: Duration = Duration::from_millis(20);
/// Connections for each lane that callers' runtimes drive, at most.
pub(crate) const MOST_PER_LANE: usize = 2;

/// The way to a lane.
pub(crate) struct ToLane {
    pub(crate) queue: mpsc::Sender<Job>,
    pub(crate) turn: Arc<Turn>,
}

/// Whose turn it is: the lane's, or that of one who goes alone. Whoever has the memory.
#[derive(Default)]
pub(crate) struct Turn {
    known: Mutex<Arc<tokio::sync::Mutex<Known>>>,
    /// The lane's last batch was one request, and nothing stands in the way of another.
    at_rest: AtomicBool,
}

pub(crate) type Lent = OwnedMutexGuard<Known>;

impl Turn {
    pub(crate) fn set_at_rest(&self, at_rest: bool) {
        self.at_rest.store(at_rest, Relaxed);
    }

    /// For the lane, behind who went alone.
    pub(crate) async fn take(&self) -> Lent {
        if let Some(known) = self.try_take() {
            return known;
        }
        let lent = self.known.lock().clone();
        if let Ok(known) = tokio::time::timeout(LENT_FOR, lent.lock_owned()).await {
            return known;
        }
        let blank = Arc::<tokio::sync::Mutex<Known>>::default();
        *self.known.lock() = blank.clone();
        blank.lock_owned().await
    }

    fn try_take(&self) -> Option<Lent> {
        self.known.lock().clone().try_lock_owned().ok()
    }
}

/// Connections that callers' runtimes drive: one for each runtime that callers were alone on.
#[derive(Default)]
pub(crate) struct OwnSessions(Mutex<Vec<(Id, Arc<Place>)>>);

type Place = tokio::sync::Mutex<Own>;

enum Own {
    None,
    Up(Session),
    /// This runtime has no network.
    Impossible,
}

impl Own {
    fn open(&self) -> Option<&Session> {
        match self {
            Self::Up(session) if !session.is_closed() => Some(session),
            Self::Up(_) | Self::None | Self::Impossible => None,
        }
    }
}

impl OwnSessions {
    /// That of this runtime, if nobody else uses it now.
    fn take(&self, runtime: Id, most: usize) -> Option<OwnedMutexGuard<Own>> {
        let mut places = self.0.lock();
        let known = places.iter().find(|(id, _)| *id == runtime);
        let place = if let Some((_, place)) = known {
            place.clone()
        } else {
            // Of runtimes that have ended.
            places.retain(|(_, place)| place.try_lock().map_or(true, |own| own.open().is_some()));
            if places.len() >= most {
                return None;
            }
            let place = Arc::new(Place::new(Own::None));
            places.push((runtime, place.clone()));
            place
        };
        place.try_lock_owned().ok()
    }
}

/// All that is needed to go alone.
struct Errand {
    inner: Arc<Inner>,
    known: Lent,
    session: OwnedMutexGuard<Own>,
    queue: mpsc::Sender<Job>,
    turn: Arc<Turn>,
}

impl Inner {
    /// Does the job without its lane, or gives it back.
    pub(crate) fn go_alone(self: &Arc<Self>, lane: &ToLane, job: Job) -> Option<Job> {
        let Some(errand) = self.errand(lane, &job) else { return Some(job) };
        // Not by the caller, who may stop waiting or look away: the lane's memory comes back.
        tokio::spawn(errand.run(job));
        None
    }

    fn errand(self: &Arc<Self>, lane: &ToLane, job: &Job) -> Option<Errand> {
        let turn = &lane.turn;
        let is_empty = lane.queue.capacity() == lane.queue.max_capacity();
        if !(turn.at_rest.load(Relaxed) && is_empty && job.request.is_plain()) {
            return None;
        }
        let runtime = Handle::try_current().ok()?.id();
        if self.engine_runtime == Some(runtime) {
            return None;
        }
        let known = turn.try_take().filter(|known| known.may_decide(&job.request))?;
        let most = MOST_PER_LANE * self.settings.lanes;
        let session = self.own_sessions.take(runtime, most)?;
        if session.open().is_none() {
            self.make_own(session);
            return None;
        }
        let (inner, queue, turn) = (self.clone(), lane.queue.clone(), turn.clone());
        Some(Errand { inner, known, session, queue, turn })
    }

    /// For the next one who is alone here.
    fn make_own(self: &Arc<Self>, mut own: OwnedMutexGuard<Own>) {
        if matches!(*own, Own::Impossible) {
            return;
        }
        let inner = self.clone();
        tokio::spawn(async move {
            // Unless it gets further.
            *own = Own::Impossible;
            match inner.connect_session(inner.settings.deadline).await {
                Ok(session) => *own = Own::Up(session),
                Err(error) => {
                    tracing::debug!(%error, "no connection for who is alone");
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                    *own = Own::None;
                }
            }
        });
    }
}

impl Errand {
    async fn run(mut self, job: Job) {
        let Job { request, mut back } = job;
        if back.reply.is_closed() {
            return;
        }
        let done = match self.session.open() {
            Some(session) => {
                // Lost with every failure: what is in the database then is not known.
                let mut known = std::mem::take(&mut *self.known);
                let (requests, backs) = (slice::from_ref(&request), slice::from_mut(&mut back));
                let mut attempt = Attempt { session, requests, backs, impatient: false };
                let done = self.inner.run_known(&mut attempt, &mut known).await;
                if done.is_ok() {
                    *self.known = known;
                }
                done
            }
            None => Ok(None),
        };
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
        if let Some(session) = self.session.open() {
            let inner = &self.inner;
            inner.connector.cancel(session.cancel_token(), inner.settings.deadline);
        }
        *self.session = Own::None;
    }

    /// Nothing happened: to the lane.
    async fn hand_over(self, job: Job) {
        let Self { queue, known, session, .. } = self;
        drop((known, session));
        // A lane that has ended answers nobody.
        let _ = queue.send(job).await;
    }
}
