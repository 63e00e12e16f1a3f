//! A lane: one connection, one batch in flight, and a queue in which the next one forms.
//!
//! A lane that cannot reach the database answers with an error at once, and connects again in the
//! background: nobody waits for what is known to be down. A key that somebody else holds is
//! answered for at once too, so that it does not hold up the others.

use std::sync::Arc;
use std::time::{Duration, Instant as Stopwatch};

use hashbrown::HashMap;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};
use tollgate_core::Outcome;
use tollgate_core::store::{Checked, Once, Record, SpendId, StoreError, StoreErrorKind};

use crate::Inner;
use crate::batch::{Batch, Reading};
use crate::error::{contended, failed, timed_out};
use crate::job::{Answer, Back, Job, Request};
use crate::shield::Sighting;

/// A key that was held, or a database that was locked, is tried again this much later.
const REST: Duration = Duration::from_millis(100);
/// A key that was held and never asked for again is forgotten after this.
const FORGET_HELD: Duration = Duration::from_secs(10);
/// Between attempts to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// A row can be swept between being made and being locked, which is rare: twice is a fault.
const MAX_ATTEMPTS: u32 = 4;

pub(crate) struct Lane {
    inner: Arc<Inner>,
    connection: Connection,
    /// Keys that somebody else holds, and until when they are not even tried.
    held: HashMap<Vec<u8>, Stopwatch, foldhash::fast::RandomState>,
    /// The whole database is out of reach until then.
    resting: Option<Stopwatch>,
}

enum Connection {
    None,
    /// Being made for the first time: worth waiting for.
    First(JoinHandle<Result<Client, StoreError>>),
    Up(Client),
    /// Being made again in the background.
    Down(JoinHandle<Client>),
}

/// Why a batch has no answers.
enum Failure {
    /// Nothing happened, and the connection is of no use any more.
    Broken(StoreError),
    /// Nothing happened: somebody else holds what it needs.
    Locked,
    /// It may have happened.
    InDoubt(StoreError),
}

impl Lane {
    fn new(inner: Arc<Inner>) -> Self {
        let (connector, within) = (inner.connector.clone(), inner.settings.deadline);
        let connecting = tokio::spawn(async move { connector.connect(within).await });
        let connection = Connection::First(connecting);
        Self { inner, connection, held: HashMap::default(), resting: None }
    }

    pub(crate) async fn run(inner: Arc<Inner>, mut queue: mpsc::Receiver<Job>) {
        let mut lane = Self::new(inner);
        let most = lane.inner.settings.batch;
        let mut jobs = Vec::new();
        while queue.recv_many(&mut jobs, most).await > 0 {
            // Whoever gave up waiting gets nothing counted.
            jobs.retain(|job| !job.back.reply.is_closed());
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
        let (requests, mut backs): (Vec<Request>, Vec<Back>) =
            jobs.into_iter().map(|job| (job.request, job.back)).unzip();
        let mut reconnected = false;
        let inner = self.inner.clone();
        loop {
            let client = match self.client().await {
                Ok(client) => client,
                Err(error) => return fail_backs(backs, &error),
            };
            match inner.run_batch(client, &requests, &mut backs, impatient).await {
                Ok((answers, held)) => {
                    if impatient {
                        self.note_held(&requests, held);
                    }
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
    async fn client(&mut self) -> Result<&Client, StoreError> {
        if let Connection::First(connecting) = &mut self.connection {
            self.connection = match connecting.await {
                Ok(Ok(client)) => Connection::Up(client),
                Ok(Err(_)) | Err(_) => Connection::None,
            };
        }
        if let Connection::Down(connecting) = &mut self.connection {
            if !connecting.is_finished() {
                return Err(down());
            }
            self.connection = match connecting.await {
                Ok(client) => Connection::Up(client),
                Err(_) => Connection::None,
            };
        }
        if matches!(&self.connection, Connection::Up(client) if client.is_closed()) {
            self.connection = Connection::None;
        }
        if matches!(self.connection, Connection::None) {
            // A server that just restarted is worth waiting for, once.
            match self.inner.connector.connect(self.inner.settings.lock_wait()).await {
                Ok(client) => self.connection = Connection::Up(client),
                Err(error) => {
                    self.reconnect();
                    return Err(error);
                }
            }
        }
        match &self.connection {
            Connection::Up(client) => Ok(client),
            Connection::None | Connection::First(_) | Connection::Down(_) => Err(down()),
        }
    }

    /// Lets go of the connection; whether the server had closed it.
    fn disconnect(&mut self) -> bool {
        let Connection::Up(client) = std::mem::replace(&mut self.connection, Connection::None)
        else {
            return false;
        };
        if client.is_closed() {
            return true;
        }
        self.inner.connector.cancel(client.cancel_token(), self.inner.settings.deadline);
        false
    }

    fn reconnect(&mut self) {
        let (connector, within) = (self.inner.connector.clone(), self.inner.settings.deadline);
        self.connection = Connection::Down(tokio::spawn(async move {
            loop {
                match connector.connect(within).await {
                    Ok(client) => return client,
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

type Answers = Vec<Result<Answer, StoreError>>;

impl Inner {
    /// The answers, and the keys that somebody else holds.
    async fn run_batch(
        &self,
        client: &Client,
        requests: &[Request],
        backs: &mut [Back],
        impatient: bool,
    ) -> Result<(Answers, Vec<Vec<u8>>), Failure> {
        let deadline = self.settings.deadline;
        for _ in 0..MAX_ATTEMPTS {
            let sent_micros = self.time.steady_micros();
            let mut batch = Batch::of(requests);
            let locked = self.statements.lock(client, &batch, impatient);
            let row = match tokio::time::timeout(deadline, locked).await {
                Ok(Ok(row)) => row,
                Ok(Err(error)) if is_contention(&error) => {
                    self.roll_back(client).await?;
                    return Err(Failure::Locked);
                }
                Ok(Err(error)) => {
                    return Err(Failure::Broken(failed("PostgreSQL took no locks", error)));
                }
                Err(_) => return Err(Failure::Broken(timed_out())),
            };
            let Some(reading) = self.take(&row, &mut batch, impatient) else {
                self.roll_back(client).await?;
                continue;
            };
            let answers = batch.settle(backs, reading, || self.next_spend_id());
            let changes = batch.changes();
            if changes.is_empty() {
                self.roll_back(client).await?;
            } else {
                let committed = self.statements.commit(client, &changes);
                match tokio::time::timeout(deadline, committed).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        self.stats.store_error();
                        let error = failed("PostgreSQL did not confirm the commit", error);
                        return Err(Failure::InDoubt(error));
                    }
                    Err(_) => {
                        self.stats.store_error();
                        return Err(Failure::InDoubt(timed_out()));
                    }
                }
            }
            self.stats.batch(requests.len() as u64);
            self.remember(requests, &answers, &batch, Sighting { now: reading.now, sent_micros });
            return Ok((answers, batch.held_keys().map(<[u8]>::to_vec).collect()));
        }
        Err(Failure::Locked)
    }

    async fn roll_back(&self, client: &Client) -> Result<(), Failure> {
        match tokio::time::timeout(self.settings.deadline, self.statements.roll_back(client)).await
        {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure::Broken(failed("PostgreSQL did not roll back", error))),
            Err(_) => Err(Failure::Broken(timed_out())),
        }
    }

    /// Hands what was read to the batch. `None`: a key was swept before it could be locked.
    fn take(&self, row: &Row, batch: &mut Batch<'_>, impatient: bool) -> Option<Reading> {
        let pairs = |keys: &str, states: &str| {
            let keys: Vec<&[u8]> = row.get::<_, Option<_>>(keys).unwrap_or_default();
            let states: Vec<&[u8]> = row.get::<_, Option<_>>(states).unwrap_or_default();
            keys.into_iter().zip(states)
        };
        let rows = pairs("keys", "states");
        if !batch.found(rows, pairs("read_keys", "read_states"), impatient) {
            return None;
        }
        let now = self.time.read(row.get("now_micros"), row.get("swept_at"));
        let expiries: Vec<i64> = row.get::<_, Option<_>>("expiries").unwrap_or_default();
        let bodies: Vec<&[u8]> = row.get::<_, Option<_>>("bodies").unwrap_or_default();
        for (((id, fingerprint), body), expires_at) in
            pairs("ids", "fingerprints").zip(bodies).zip(expiries)
        {
            if expires_at > now.as_micros() {
                let (fingerprint, body) = (fingerprint.to_vec(), body.to_vec());
                batch.found_record(id, Record { fingerprint, body });
            }
        }
        let runs: Vec<i64> = row.get::<_, Option<_>>("runs").unwrap_or_default();
        let sequences: Vec<i64> = row.get::<_, Option<_>>("sequences").unwrap_or_default();
        for (run, sequence) in runs.into_iter().zip(sequences) {
            let (run, sequence) = (run.cast_unsigned(), sequence.cast_unsigned());
            batch.found_refund(SpendId { run, sequence });
        }
        Some(Reading { now, epoch: row.get::<_, i64>("epoch").cast_unsigned() })
    }

    /// Keeps the shield in step with what was just committed.
    fn remember(
        &self,
        requests: &[Request],
        answers: &[Result<Answer, StoreError>],
        batch: &Batch<'_>,
        sighting: Sighting,
    ) {
        if !self.settings.shield {
            return;
        }
        for key in batch.changed_keys() {
            self.shield.forget(key);
        }
        for (number, (request, answer)) in requests.iter().zip(answers).enumerate() {
            if request.only_reads() || request.once.is_some() {
                continue;
            }
            if let Ok(Answer::Checked(Checked::Decided(Once::Fresh(decided)))) = answer
                && let Outcome::Refused { .. } = decided.decision.outcome
            {
                for (key, state) in batch.states_of(number) {
                    self.shield.remember(key, state, sighting);
                }
            }
        }
    }
}

fn is_contention(error: &tokio_postgres::Error) -> bool {
    matches!(
        error.code(),
        Some(
            &(SqlState::LOCK_NOT_AVAILABLE
                | SqlState::QUERY_CANCELED
                | SqlState::T_R_DEADLOCK_DETECTED
                | SqlState::T_R_SERIALIZATION_FAILURE)
        )
    )
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
