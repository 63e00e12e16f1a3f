//! The two round trips of a batch: begin and lock, then write and commit. Or the one of a batch
//! that was decided on remembered states.
//!
//! The statements that all decisions are made of are prepared by each connection, which saves
//! the server from reading and planning them again each time. Not where a pooler stands in between:
//! there the next transaction may be in another session, which knows nothing of them.

use std::ops::Deref;
use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};
use tollgate_core::store::StoreError;

use crate::batch::{Batch, Changes, Reading};
use crate::connect::Connector;
use crate::error::timed_out;
use crate::pooler;
use crate::settings::Settings;

/// What is asked again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    LockBatch,
    WriteBatch,
    WriteKnown,
    GiveSlots,
    WriteOne,
}

/// Their texts, in the same order.
const CALLS: [&str; 5] = [
    include_str!("../queries/lock_batch.sql"),
    include_str!("../queries/write_batch.sql"),
    include_str!("../queries/write_known.sql"),
    include_str!("../queries/give_new_slots.sql"),
    include_str!("../queries/write_one.sql"),
];

const SESSION: &str = "set enable_seqscan = off; set jit = off; set lock_timeout = 1";

/// Statements with their schema written in.
#[derive(Debug)]
pub(crate) struct Statements {
    lock_wait: String,
    idle: String,
    calls: [String; 5],
    prepare: bool,
}

/// A connection, and what it has prepared.
pub(crate) struct Session {
    client: Client,
    prepared: Option<[Statement; 5]>,
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// What a batch was decided by, before the database was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guess {
    pub(crate) reading: Reading,
    /// How far that may be behind the database's clock; `None`: tests say what time it is.
    pub(crate) behind_micros: Option<i64>,
}

impl Statements {
    pub(crate) fn new(settings: &Settings) -> Self {
        // An instance that stops in between must not hold a hot key for longer than this.
        let abandoned = settings.deadline.max(Duration::from_secs(1));
        Self {
            lock_wait: settings.lock_wait().as_millis().to_string(),
            idle: abandoned.as_millis().to_string(),
            calls: CALLS.map(|call| settings.in_schema(call)),
            prepare: settings.prepare,
        }
    }

    pub(crate) async fn connect(
        &self,
        connector: &Connector,
        within: Duration,
    ) -> Result<Session, StoreError> {
        let connected = async {
            let client = connector.connect(within).await?;
            let prepared = if self.prepare && pooler::is_direct(&client).await {
                // Whatever keeps them from being prepared will be said when they are asked.
                self.prepare(&client).await.ok()
            } else {
                None
            };
            Ok(Session { client, prepared })
        };
        tokio::time::timeout(within, connected).await.unwrap_or_else(|_| Err(timed_out()))
    }

    async fn prepare(&self, client: &Client) -> Result<[Statement; 5], tokio_postgres::Error> {
        let [lock_batch, write_batch, write_known, give_new_slots, write_one] = &self.calls;
        // A plan is made where it is used, and made anew now and then: so this holds for the session.
        // Whoever waits for a lock longer than `write_one` does says so in its own transaction.
        let (_, lock_batch, write_batch, write_known, give_new_slots, write_one) = tokio::try_join!(
            client.batch_execute(SESSION),
            client.prepare(lock_batch),
            client.prepare(write_batch),
            client.prepare(write_known),
            client.prepare(give_new_slots),
            client.prepare(write_one),
        )?;
        Ok([lock_batch, write_batch, write_known, give_new_slots, write_one])
    }

    /// Asks for one of them; each is answered by one row.
    pub(crate) async fn call(
        &self,
        session: &Session,
        call: Call,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Row, tokio_postgres::Error> {
        match &session.prepared {
            Some(prepared) => {
                let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
                session.client.query_one(&prepared[call as usize], &values).await
            }
            None => session.client.query_typed_one(&self.calls[call as usize], parameters).await,
        }
    }

    /// Begins a transaction, takes the batch's locks, and reads what is behind them.
    pub(crate) async fn lock(
        &self,
        session: &Session,
        batch: &Batch<'_>,
        impatient: bool,
    ) -> Result<Row, tokio_postgres::Error> {
        let (lock, read) = (batch.keys_to_lock(), batch.keys_to_read());
        let (advisory, ids): (Vec<i64>, Vec<&[u8]>) = batch.once_ids().into_iter().unzip();
        let receipts = batch.receipts();
        let runs: Vec<i64> = receipts.iter().map(|id| id.run.cast_signed()).collect();
        let sequences: Vec<i64> = receipts.iter().map(|id| id.sequence.cast_signed()).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 9] = [
            (&lock, Type::BYTEA_ARRAY),
            (&read, Type::BYTEA_ARRAY),
            (&impatient, Type::BOOL),
            (&advisory, Type::INT8_ARRAY),
            (&ids, Type::BYTEA_ARRAY),
            (&runs, Type::INT8_ARRAY),
            (&sequences, Type::INT8_ARRAY),
            (&self.lock_wait, Type::TEXT),
            (&self.idle, Type::TEXT),
        ];
        // Polled in this order, so sent in this order, without waiting in between.
        let (begun, locked) = tokio::join!(
            biased;
            session.batch_execute("begin isolation level read committed"),
            self.call(session, Call::LockBatch, &parameters),
        );
        begun.and(locked)
    }

    /// Writes and commits. An error leaves open whether it happened.
    pub(crate) async fn commit(
        &self,
        session: &Session,
        changes: &Changes<'_>,
    ) -> Result<(), tokio_postgres::Error> {
        let records = changes.records;
        let ids: Vec<&[u8]> = records.iter().map(|(once, _)| &*once.id).collect();
        let fingerprints: Vec<&[u8]> = records.iter().map(|(once, _)| &*once.fingerprint).collect();
        let bodies: Vec<&[u8]> = records.iter().map(|(_, body)| &**body).collect();
        let record_expiries: Vec<i64> =
            records.iter().map(|(once, _)| once.expires_at.as_micros()).collect();
        let refunds = changes.refunds;
        let runs: Vec<i64> = refunds.iter().map(|(id, _)| id.run.cast_signed()).collect();
        let sequences: Vec<i64> = refunds.iter().map(|(id, _)| id.sequence.cast_signed()).collect();
        let refund_expiries: Vec<i64> = refunds.iter().map(|(_, at)| at.as_micros()).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 10] = [
            (&changes.keys, Type::BYTEA_ARRAY),
            (&changes.states, Type::BYTEA_ARRAY),
            (&changes.expiries, Type::INT8_ARRAY),
            (&ids, Type::BYTEA_ARRAY),
            (&fingerprints, Type::BYTEA_ARRAY),
            (&bodies, Type::BYTEA_ARRAY),
            (&record_expiries, Type::INT8_ARRAY),
            (&runs, Type::INT8_ARRAY),
            (&sequences, Type::INT8_ARRAY),
            (&refund_expiries, Type::INT8_ARRAY),
        ];
        // A commit behind a failed write rolls back, and the write's error is the one to report.
        let (written, committed) = tokio::join!(
            biased;
            self.call(session, Call::WriteBatch, &parameters),
            session.batch_execute("commit"),
        );
        written.and(committed)
    }

    /// Writes what was decided on remembered states, and the database's clock. `None`: they are
    /// not what the database holds, and nothing was written.
    pub(crate) async fn commit_known(
        &self,
        session: &Session,
        known: &[&[u8]],
        changes: &Changes<'_>,
        guess: Guess,
    ) -> Result<Option<i64>, tokio_postgres::Error> {
        let (epoch, now) = (guess.reading.epoch.cast_signed(), guess.reading.now.as_micros());
        if let (Some(prepared), [key], [state]) = (&session.prepared, &*changes.keys, known) {
            let parameters: [&(dyn ToSql + Sync); 7] = [
                key,
                state,
                &changes.states[0],
                &changes.expiries[0],
                &epoch,
                &now,
                &guess.behind_micros,
            ];
            let write_one = &prepared[Call::WriteOne as usize];
            let row = session.client.query_opt(write_one, &parameters).await?;
            return Ok(row.map(|row| row.get(0)));
        }
        let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
            (&changes.keys, Type::BYTEA_ARRAY),
            (&known, Type::BYTEA_ARRAY),
            (&changes.states, Type::BYTEA_ARRAY),
            (&changes.expiries, Type::INT8_ARRAY),
            (&epoch, Type::INT8),
            (&now, Type::INT8),
            (&guess.behind_micros, Type::INT8),
        ];
        let row = self.call(session, Call::WriteKnown, &parameters).await?;
        Ok(row.get(0))
    }
}
