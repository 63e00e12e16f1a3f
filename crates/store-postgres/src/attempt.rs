//! One try of a batch: two round trips, or one if everything it needs is remembered.

use std::future::Future;

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tollgate_core::Outcome;
use tollgate_core::store::{Checked, Key, Once, Record, SpendId, StoreError};

use crate::Inner;
use crate::batch::{Batch, Reading};
use crate::error::{caught, failed, timed_out};
use crate::job::{Answer, Back, Request};
use crate::known::Known;
use crate::session::{Guess, Session};
use crate::shield::Sighting;

/// A row can be swept between being made and being locked, which is rare: so often in a row is a fault.
const MAX_ATTEMPTS: u32 = 4;

/// Why a batch has no answers.
pub(crate) enum Failure {
    /// Nothing happened, and the connection is of no use any more.
    Broken(StoreError),
    /// Nothing happened: somebody else holds what it needs.
    Locked,
    /// Nothing happened, and trying again would not help.
    Undone(StoreError),
    /// It may have happened.
    InDoubt(StoreError),
}

pub(crate) type Answers = Vec<Result<Answer, StoreError>>;

/// One try of a batch.
pub(crate) struct Attempt<'a> {
    pub(crate) session: &'a Session,
    pub(crate) requests: &'a [Request],
    pub(crate) backs: &'a mut [Back],
    /// Skip what somebody else holds.
    pub(crate) impatient: bool,
}

impl Inner {
    /// The answers, and the keys that somebody else holds.
    pub(crate) async fn run_batch(
        &self,
        mut attempt: Attempt<'_>,
        known: &mut Known,
    ) -> Result<(Answers, Vec<Vec<u8>>), Failure> {
        if !attempt.impatient
            && known.trust.is_trusted()
            && let Some(answers) = self.run_known(&mut attempt, known).await?
        {
            return Ok((answers, Vec::new()));
        }
        let Attempt { session, requests, backs, impatient } = attempt;
        for _ in 0..MAX_ATTEMPTS {
            let sent_micros = self.time.steady_micros();
            let mut batch = Batch::of(requests);
            let locked = self.statements.lock(session, &batch, impatient);
            let row = match self.in_time(locked).await {
                Ok(Ok(row)) => row,
                Ok(Err(error)) if is_contention(&error) => {
                    self.roll_back(session).await?;
                    return Err(Failure::Locked);
                }
                Ok(Err(error)) => {
                    return Err(Failure::Broken(failed("PostgreSQL took no locks", error)));
                }
                Err(late) => return Err(Failure::Broken(late)),
            };
            let Some(reading) = self.take(&row, &mut batch, impatient) else {
                self.roll_back(session).await?;
                continue;
            };
            let settled = caught(|| batch.settle(backs, reading, || self.next_spend_id()));
            let answers = match settled {
                Ok(answers) => answers,
                Err(error) => {
                    self.roll_back(session).await?;
                    return Err(Failure::Undone(error));
                }
            };
            let changes = batch.changes();
            if changes.is_empty() {
                self.roll_back(session).await?;
            } else {
                let committed = self.statements.commit(session, &changes);
                self.in_time(committed).await.map_err(|late| self.in_doubt(late))?.map_err(
                    |error| self.in_doubt(failed("PostgreSQL did not confirm the commit", error)),
                )?;
            }
            self.stats.batch(requests.len() as u64);
            known.remember(&batch, reading);
            self.remember(
                requests,
                &answers,
                &batch,
                Sighting { clock: reading.clock, sent_micros },
            );
            return Ok((answers, batch.held_keys().map(<[u8]>::to_vec).collect()));
        }
        Err(Failure::Locked)
    }

    /// Decides on remembered states and writes in one round trip. `None`: nothing happened, and
    /// the batch has to go the long way.
    ///
    /// Only if everything is allowed: the instant it is decided by is a little behind the
    /// database's clock, so a refusal could come to somebody who waited just long enough.
    pub(crate) async fn run_known(
        &self,
        attempt: &mut Attempt<'_>,
        known: &mut Known,
    ) -> Result<Option<Answers>, Failure> {
        let mut batch = Batch::of(attempt.requests);
        if !batch.recalled(known) {
            return Ok(None);
        }
        let now = self.time.now_after(known.latest);
        let reading = Reading { now, clock: now, epoch: known.epoch };
        let settled = caught(|| batch.settle(attempt.backs, reading, || self.next_spend_id()));
        let answers = settled.map_err(Failure::Undone)?;
        let changes = batch.changes();
        if !answers.iter().all(is_allowed) || changes.keys.len() < batch.keys_to_lock().len() {
            return Ok(None);
        }
        let states: Vec<&[u8]> = changes.keys.iter().filter_map(|key| known.get(key)).collect();
        let guess = Guess { reading, behind_micros: self.time.tolerance_micros() };
        let committed = self.statements.commit_known(attempt.session, &states, &changes, guess);
        let sent_micros = self.time.steady_micros();
        match self.in_time(committed).await {
            Ok(Ok(Some(database_micros))) => {
                self.time.read_since(sent_micros, database_micros);
                known.trust.was_right();
                known.remember(&batch, reading);
                self.stats.batch(attempt.requests.len() as u64);
                self.forget_shielded(&batch);
                Ok(Some(answers))
            }
            Ok(Ok(None)) => {
                known.trust.was_wrong();
                Ok(None)
            }
            // Errors that PostgreSQL itself reports have undone the statement.
            Ok(Err(error)) if is_contention(&error) || is_different(&error) => {
                known.trust.was_wrong();
                Ok(None)
            }
            Ok(Err(error)) if error.as_db_error().is_some() => {
                Err(Failure::Broken(failed("PostgreSQL did not write", error)))
            }
            Ok(Err(error)) => {
                Err(self.in_doubt(failed("PostgreSQL did not confirm the commit", error)))
            }
            Err(late) => Err(self.in_doubt(late)),
        }
    }

    async fn in_time<T>(&self, future: impl Future<Output = T>) -> Result<T, StoreError> {
        tokio::time::timeout(self.settings.deadline, future).await.map_err(|_| timed_out())
    }

    fn in_doubt(&self, error: StoreError) -> Failure {
        self.stats.store_error();
        Failure::InDoubt(error)
    }

    async fn roll_back(&self, session: &Session) -> Result<(), Failure> {
        let rolled_back = self.in_time(session.batch_execute("rollback")).await;
        rolled_back
            .map_err(Failure::Broken)?
            .map_err(|error| Failure::Broken(failed("PostgreSQL did not roll back", error)))
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
        let clock = self.time.read(row.get("now_micros"));
        let now = self.time.not_before(clock, row.get("swept_at"));
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
        Some(Reading { now, clock, epoch: row.get::<_, i64>("epoch").cast_unsigned() })
    }

    fn forget_shielded(&self, batch: &Batch<'_>) {
        for key in batch.changed_keys().filter_map(Key::parse) {
            self.shield.forget(key);
        }
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
        self.forget_shielded(batch);
        for (number, (request, answer)) in requests.iter().zip(answers).enumerate() {
            if request.only_reads() || request.once.is_some() {
                continue;
            }
            if let Ok(Answer::Checked(Checked::Decided(Once::Fresh(decided)))) = answer
                && let Outcome::Refused { .. } = decided.decision.outcome
            {
                for (key, state) in batch.states_of(number) {
                    if let Some(key) = Key::parse(key) {
                        self.shield.remember(key, state, sighting);
                    }
                }
            }
        }
    }
}

fn is_allowed(answer: &Result<Answer, StoreError>) -> bool {
    match answer {
        Ok(Answer::Checked(Checked::Decided(Once::Fresh(decided)))) => decided.decision.allowed(),
        _ => false,
    }
}

/// What `write_known` says when a remembered state is not what the database holds.
fn is_different(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code() == "TG412")
}

pub(crate) fn is_contention(error: &tokio_postgres::Error) -> bool {
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
