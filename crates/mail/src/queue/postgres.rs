//! PostgreSQL: a few connections, a transaction each, nothing remembered between them.
//!
//! Statements are unnamed and settings local to the transaction, so that PgBouncer can stand in
//! between. Locks are taken in one order: tenant rows, account rows, batches by name, messages by id
//! or passing over locked ones, reports, tallies last and sorted.

mod migrate;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Row as PgRow};
use tollgate::{PostgresNeighbour, StoreError, StoreErrorKind};

use super::db::{Dialect, Row, Value, dialect};
use crate::error::MailError;

const CONNECTIONS: usize = 8;
/// Connecting, waiting for a free connection, or one statement.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a transaction begins with. An instance that stops in the middle must not hold its rows.
const BEGIN_WRITE: &str = "begin isolation level read committed; \
    set local idle_in_transaction_session_timeout = '10s'; \
    set local statement_timeout = '10s'; set local lock_timeout = '5s'";
const BEGIN_READ: &str = "begin isolation level repeatable read read only; \
    set local idle_in_transaction_session_timeout = '10s'; set local statement_timeout = '10s'";

/// The relay's tables in PostgreSQL.
#[derive(Debug)]
pub(crate) struct Postgres {
    pool: Arc<Pool>,
}

struct Pool {
    neighbour: PostgresNeighbour,
    free: Mutex<Vec<Client>>,
    turns: Arc<Semaphore>,
    /// Statements as they are written for this schema.
    statements: RwLock<HashMap<&'static str, Arc<str>>>,
    closed: AtomicBool,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("neighbour", &self.neighbour).finish_non_exhaustive()
    }
}

/// A transaction. Dropped before its end, it takes its connection along, and PostgreSQL rolls back.
pub(super) struct Session {
    pool: Arc<Pool>,
    client: Client,
    begin: &'static str,
    begun: AtomicBool,
    _turn: OwnedSemaphorePermit,
}

impl Postgres {
    /// Connects, and brings the tables up to date.
    pub(crate) async fn open(url: &str) -> Result<Self, MailError> {
        let neighbour = PostgresNeighbour::parse(url)?;
        let client = neighbour.connect(PATIENCE).await?;
        neighbour.migrate(&client, &migrate::MIGRATIONS).await?;
        let pool = Pool {
            neighbour,
            free: Mutex::new(vec![client]),
            turns: Arc::new(Semaphore::new(CONNECTIONS)),
            statements: RwLock::default(),
            closed: AtomicBool::new(false),
        };
        Ok(Self { pool: Arc::new(pool) })
    }

    /// For changes.
    pub(super) async fn write(&self) -> Result<Session, MailError> {
        self.begin(BEGIN_WRITE).await
    }

    /// For looking: everything as it is at one moment.
    pub(super) async fn read(&self) -> Result<Session, MailError> {
        self.begin(BEGIN_READ).await
    }

    async fn begin(&self, begin: &'static str) -> Result<Session, MailError> {
        let pool = &self.pool;
        if pool.closed.load(Ordering::Relaxed) {
            return Err(MailError::unavailable("the mail relay is closed"));
        }
        let turn = tokio::time::timeout(PATIENCE, pool.turns.clone().acquire_owned())
            .await
            .map_err(|_| timed_out())?
            .map_err(|_| MailError::unavailable("the mail relay is closed"))?;
        let free = loop {
            let free = pool.free.lock().pop();
            match free {
                Some(client) if client.is_closed() => {}
                free => break free,
            }
        };
        let client = match free {
            Some(client) => client,
            None => pool.neighbour.connect(PATIENCE).await?,
        };
        let begun = AtomicBool::new(false);
        Ok(Session { pool: pool.clone(), client, begin, begun, _turn: turn })
    }

    pub(crate) fn close(&self) {
        self.pool.closed.store(true, Ordering::Relaxed);
        self.pool.free.lock().clear();
    }
}

impl Session {
    pub(super) async fn rows(
        &self,
        sql: &'static str,
        values: &[Value],
    ) -> Result<Vec<Row>, MailError> {
        let sql = self.pool.statement(sql);
        let values = typed(values);
        let rows = self.run(self.client.query_typed(&sql, &values)).await?;
        rows.iter().map(row_of).collect()
    }

    /// All are sent before the first answer is waited for.
    pub(super) async fn row_each(
        &self,
        sql: &'static str,
        values: &[Vec<Value>],
    ) -> Result<Vec<Option<Row>>, MailError> {
        let sql = self.pool.statement(sql);
        let values: Vec<_> = values.iter().map(|values| typed(values)).collect();
        let asked = values.iter().map(|values| self.client.query_typed(&sql, values));
        let mut asked: Vec<_> = asked.map(Box::pin).collect();
        let answered = async {
            // A statement is sent when it is first polled.
            let mut early = Vec::with_capacity(asked.len());
            std::future::poll_fn(|context| {
                early.extend(asked.iter_mut().map(|asked| asked.as_mut().poll(context)));
                std::task::Poll::Ready(())
            })
            .await;
            let mut answers = Vec::with_capacity(asked.len());
            for (asked, early) in asked.iter_mut().zip(early) {
                answers.push(match early {
                    std::task::Poll::Ready(answer) => answer?,
                    std::task::Poll::Pending => asked.as_mut().await?,
                });
            }
            Ok(answers)
        };
        let answers = self.run(answered).await?;
        answers.iter().map(|rows| rows.first().map(row_of).transpose()).collect()
    }

    pub(super) async fn change(
        &self,
        sql: &'static str,
        values: &[Value],
    ) -> Result<u64, MailError> {
        let sql = self.pool.statement(sql);
        let values = typed(values);
        self.run(self.client.execute_typed(&sql, &values)).await
    }

    /// A statement; the first one together with the beginning of the transaction.
    async fn run<T>(
        &self,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, MailError> {
        let answered = async {
            if self.begun.swap(true, Ordering::Relaxed) {
                statement.await
            } else {
                // Polled in this order, so sent in this order, without waiting in between.
                let (begun, answer) =
                    tokio::join!(biased; self.client.batch_execute(self.begin), statement);
                begun.and(answer)
            }
        };
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(answer) => answer.map_err(failed),
            Err(_) => Err(timed_out()),
        }
    }

    /// Makes it durable. An error leaves open whether it is.
    pub(super) async fn commit(self) -> Result<(), MailError> {
        self.end("commit").await
    }

    pub(super) async fn roll_back(self) {
        let _ = self.end("rollback").await;
    }

    async fn end(self, word: &'static str) -> Result<(), MailError> {
        if self.begun.load(Ordering::Relaxed) {
            tokio::time::timeout(PATIENCE, self.client.batch_execute(word))
                .await
                .map_err(|_| timed_out())?
                .map_err(failed)?;
        }
        if !self.pool.closed.load(Ordering::Relaxed) {
            self.pool.free.lock().push(self.client);
        }
        Ok(())
    }
}

impl Pool {
    fn statement(&self, sql: &'static str) -> Arc<str> {
        if let Some(written) = self.statements.read().get(sql) {
            return written.clone();
        }
        let written: Arc<str> = dialect(sql, Dialect::Postgres(self.neighbour.schema())).into();
        self.statements.write().insert(sql, written.clone());
        written
    }
}

fn typed(values: &[Value]) -> Vec<(&(dyn ToSql + Sync), Type)> {
    let kind = |value: &Value| match value {
        Value::Int(_) => Type::INT8,
        Value::Text(_) => Type::TEXT,
        Value::Bytes(_) => Type::BYTEA,
    };
    values.iter().map(|value| (value as &(dyn ToSql + Sync), kind(value))).collect()
}

impl ToSql for Value {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut tokio_postgres::types::private::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Int(value) => value.to_sql(kind, out),
            Self::Text(value) => value.to_sql(kind, out),
            Self::Bytes(value) => value.to_sql(kind, out),
        }
    }

    fn accepts(kind: &Type) -> bool {
        matches!(*kind, Type::INT8 | Type::TEXT | Type::BYTEA)
    }

    to_sql_checked!();
}

fn row_of(row: &PgRow) -> Result<Row, MailError> {
    let value = |(position, column): (usize, &tokio_postgres::Column)| match *column.type_() {
        Type::INT8 => row.try_get(position).map(Value::Int),
        Type::INT4 => row.try_get(position).map(|it: Option<i32>| Value::Int(it.map(i64::from))),
        Type::BYTEA => row.try_get(position).map(Value::Bytes),
        Type::VOID => Ok(Value::Int(None)),
        _ => row.try_get(position).map(Value::Text),
    };
    let values: Result<Vec<Value>, _> = row.columns().iter().enumerate().map(value).collect();
    values.map(Row).map_err(failed)
}

fn failed(error: tokio_postgres::Error) -> MailError {
    PostgresNeighbour::error("the mail relay's tables in PostgreSQL cannot be used", error).into()
}

fn timed_out() -> MailError {
    let message = "PostgreSQL did not answer the mail relay in time";
    StoreError::new(StoreErrorKind::Timeout, message).into()
}
