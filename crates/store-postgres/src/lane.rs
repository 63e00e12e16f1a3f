//! A lane: one connection, one batch in flight, and a queue in which the next one forms.
//!
//! A lane that cannot reach the database answers with an error at once, and connects again in the
//! background: nobody waits for what is known to be down. A key that somebody else holds is
//! answered for at once too, so that it does not hold up the others.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant as Stopwatch;
use tollgate_core::store::{StoreError, StoreErrorKind};

use crate::Inner;
use crate::alone::Turn;
use crate::attempt::{Attempt, Failure};
use crate::error::contended;
use crate::job::{Back, Job, Request};
use crate::session::Session;

/// A key that was held, or a database that was locked, is tried again this much later.
const REST: Duration = Duration::from_millis(100);
/// A key that was held and never asked for again is forgotten after this.
const FORGET_HELD: Duration = Duration::from_secs(10);
/// Between attempts to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
pub(crate) struct Lane {
    inner: Arc<Inner>,
    connection: Connection,
    turn: Arc<Turn>,
    /// Keys that somebody else holds, and until when they are not even tried.
    held: HashMap<Vec<u8>, Stopwatch, foldhash::fast::RandomState>,
    /// The whole database is out of reach until then.
    resting: Option<Stopwatch>,
}

enum Connection {
    None,
    /// Being made for the first time: worth waiting for.
    First(JoinHandle<Result<Session, StoreError>>),
    Up(Session),
    /// Being made again in the background.
    Down(JoinHandle<Session>),
}

impl Lane {
    fn new(inner: Arc<Inner>, turn: Arc<Turn>) -> Self {
        let own = inner.clone();
        let connecting = async move { own.connect_session(own.settings.deadline).await };
        let connection = Connection::First(tokio::spawn(connecting));
        Self { inner, connection, turn, held: HashMap::default(), resting: None }
    }

    pub(crate) async fn run(inner: Arc<Inner>, turn: Arc<Turn>, mut queue: mpsc::Receiver<Job>) {
        let mut lane = Self::new(inner, turn);
        let most = lane.inner.settings.batch;
        let mut jobs = Vec::new();
        while queue.recv_many(&mut jobs, most).await > 0 {
            lane.answer(std::mem::take(&mut jobs)).await;
            // Those just answered may ask again at once: let them into the next batch.
            tokio::task::yield_now().await;
        }
    }

    async fn answer(&mut self, mut jobs: Vec<Job>) {
        if let Some(until) = self.resting {
            if Stopwatch::now() < until {
                return fail(jobs, &contended());
            }
            self.resting = None;
        }
        let suspects = self.take_suspects(&mut jobs);
        if !jobs.is_empty() {
            self.answer_alike(jobs, false).await;
        }
        if !suspects.is_empty() {
            self.answer_alike(suspects, true).await;
        }
    }

    /// Takes out the jobs whose keys were found held; those that are not tried yet are answered.
    fn take_suspects(&mut self, jobs: &mut Vec<Job>) -> Vec<Job> {
        if self.held.is_empty() {
            return Vec::new();
        }
        let now = Stopwatch::now();
        let mut suspects = Vec::new();
        for job in std::mem::take(jobs) {
            let until = job.request.keys().iter().filter_map(|key| self.held.get(*key)).max();
            match until.copied() {
                Some(until) if now < until => fail(vec![job], &contended()),
                Some(_) => suspects.push(job),
                None => jobs.push(job),
            }
        }
        suspects
    }

    /// Answers jobs in one batch. Nothing of it is retried once it may have happened.
    async fn answer_alike(&mut self, jobs: Vec<Job>, mut impatient: bool) {
        let mut lent = self.turn.take().await;
        self.turn.set_at_rest(false);
        // Whoever gave up waiting gets nothing counted.
        let waiting = jobs.into_iter().filter(|job| !job.back.reply.is_closed());
        let (requests, mut backs): (Vec<Request>, Vec<Back>) =
            waiting.map(|job| (job.request, job.back)).unzip();
        if requests.is_empty() {
            return;
        }
        let mut reconnected = false;
        let inner = self.inner.clone();
        // Lost with every failure: what is in the database then is not known.
        let mut known = std::mem::take(&mut *lent);
        loop {
            let session = match self.session().await {
                Ok(session) => session,
                Err(error) => return fail_backs(backs, &error),
            };
            let batch = Attempt { session, requests: &requests, backs: &mut backs, impatient };
            match inner.run_batch(batch, &mut known).await {
                Ok((answers, held)) => {
                    *lent = known;
                    drop(lent);
                    if impatient {
                        self.note_held(&requests, held);
                    }
                    self.turn.set_at_rest(requests.len() == 1);
                    for (back, answer) in backs.into_iter().zip(answers) {
                        // Gone callers need no answer.
                        let _ = back.reply.send(answer);
                    }
                    return;
                }
                Err(Failure::Locked) if impatient => {
                    self.resting = Some(Stopwatch::now() + REST);
                    return fail_backs(backs, &contended());
                }
                Err(Failure::Locked) => impatient = true,
                Err(Failure::Undone(error)) => return fail_backs(backs, &error),
                Err(Failure::Broken(error)) => {
                    let was_stale = self.disconnect();
                    if reconnected || !was_stale {
                        self.reconnect();
                        return fail_backs(backs, &error);
                    }
                    reconnected = true;
                }
                Err(Failure::InDoubt(error)) => {
                    self.disconnect();
                    self.reconnect();
                    return fail_backs(backs, &error);
                }
            }
        }
    }

    fn note_held(&mut self, requests: &[Request], held: Vec<Vec<u8>>) {
        for key in requests.iter().flat_map(Request::keys) {
            self.held.remove(key);
        }
        let now = Stopwatch::now();
        let until = now + REST;
        // Nobody asked for these again.
        self.held.retain(|_, until| now < *until + FORGET_HELD);
        self.held.extend(held.into_iter().map(|key| (key, until)));
    }

    /// The connection, made now if there is none. While it is being made in the background, an
    /// error at once.
    async fn session(&mut self) -> Result<&Session, StoreError> {
        if let Connection::First(connecting) = &mut self.connection {
            self.connection = match connecting.await {
                Ok(Ok(session)) => Connection::Up(session),
                Ok(Err(_)) | Err(_) => Connection::None,
            };
        }
        if let Connection::Down(connecting) = &mut self.connection {
            if !connecting.is_finished() {
                return Err(down());
            }
            self.connection = match connecting.await {
                Ok(session) => Connection::Up(session),
                Err(_) => Connection::None,
            };
        }
        if matches!(&self.connection, Connection::Up(session) if session.is_closed()) {
            self.connection = Connection::None;
        }
        if matches!(self.connection, Connection::None) {
            // A server that just restarted is worth waiting for, once.
            match self.inner.connect_session(self.inner.settings.lock_wait()).await {
                Ok(session) => self.connection = Connection::Up(session),
                Err(error) => {
                    self.reconnect();
                    return Err(error);
                }
            }
        }
        match &self.connection {
            Connection::Up(session) => Ok(session),
            Connection::None | Connection::First(_) | Connection::Down(_) => Err(down()),
        }
    }

    /// Lets go of the connection; whether the server had closed it.
    fn disconnect(&mut self) -> bool {
        let Connection::Up(session) = std::mem::replace(&mut self.connection, Connection::None)
        else {
            return false;
        };
        self.inner.own_sessions.forget();
        if session.is_closed() {
            return true;
        }
        self.inner.connector.cancel(session.cancel_token(), self.inner.settings.deadline);
        false
    }

    fn reconnect(&mut self) {
        let inner = self.inner.clone();
        self.connection = Connection::Down(tokio::spawn(async move {
            loop {
                match inner.connect_session(inner.settings.deadline).await {
                    Ok(session) => return session,
                    Err(error) => tracing::debug!(%error, "PostgreSQL is still out of reach"),
                }
                tokio::time::sleep(RECONNECT_PAUSE).await;
            }
        }));
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Connection::Down(connecting) = &self.connection {
            connecting.abort();
        }
    }
}

fn down() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "PostgreSQL is out of reach; it is being tried again",
    )
}

fn fail(jobs: Vec<Job>, error: &StoreError) {
    fail_backs(jobs.into_iter().map(|job| job.back).collect(), error);
}

fn fail_backs(backs: Vec<Back>, error: &StoreError) {
    for back in backs {
        let _ = back.reply.send(Err(error.clone()));
    }
}
