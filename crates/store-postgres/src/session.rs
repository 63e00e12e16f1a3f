//! The two round trips of a batch: begin and lock, then write and commit.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::batch::{Batch, Changes};
use crate::settings::Settings;

/// Statements with their schema written in.
#[derive(Debug)]
pub(crate) struct Statements {
    lock_wait: String,
    idle: String,
    lock_batch: String,
    write_batch: String,
}

impl Statements {
    pub(crate) fn new(settings: &Settings) -> Self {
        // An instance that stops in between must not hold a hot key for longer than this.
        let abandoned = settings.deadline.max(Duration::from_secs(1));
        Self {
            lock_wait: settings.lock_wait().as_millis().to_string(),
            idle: abandoned.as_millis().to_string(),
            lock_batch: settings.in_schema(include_str!("../queries/lock_batch.sql")),
            write_batch: settings.in_schema(include_str!("../queries/write_batch.sql")),
        }
    }

    /// Begins a transaction, takes the batch's locks, and reads what is behind them.
    pub(crate) async fn lock(
        &self,
        client: &Client,
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
            client.batch_execute("begin isolation level read committed"),
            client.query_typed_one(&self.lock_batch, &parameters),
        );
        begun.and(locked)
    }

    /// Writes and commits. An error leaves open whether it happened.
    pub(crate) async fn commit(
        &self,
        client: &Client,
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
            client.query_typed(&self.write_batch, &parameters),
            client.batch_execute("commit"),
        );
        written.and(committed)
    }

    pub(crate) async fn roll_back(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        client.batch_execute("rollback").await
    }
}
