//! One connection of the simulated database: reads what is asked, does it, and answers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::database::{Database, LockTimeout, Transaction};
use super::line::{Condition, Plug, ServerEnd};
use super::weather::{Fate, Fault};
use super::wire::{Asked, Assembly, Reply, Rows, SqlError, Standing};

pub(super) type Sql<T> = Result<T, SqlError>;

/// The code in a request that cancels instead of connecting.
const CANCEL_REQUEST: [u8; 4] = 80_877_102_u32.to_be_bytes();

/// How long an instance takes to notice that a line is silent.
const KEEPALIVE: Duration = Duration::from_secs(20);

pub(super) struct Session {
    pub(super) database: Arc<Database>,
    pub(super) instance: usize,
    pub(super) transaction: Option<Transaction>,
    /// Everything is refused until the transaction ends.
    failed: bool,
    cancelled: Arc<Notify>,
}

/// Serves one line until it ends.
pub(super) async fn serve(database: Arc<Database>, mut line: ServerEnd, instance: usize) {
    let Some(opening) = line.opening().await else { return };
    pause(&database).await;
    if opening.starts_with(&CANCEL_REQUEST) {
        let process = opening[4..8].try_into().map_or(0, i32::from_be_bytes);
        return database.cancel(process);
    }
    let (process, cancelled) = database.enter();
    line.send(&Reply::welcome(process).0).await;
    let mut session = Session {
        database: database.clone(),
        instance,
        transaction: None,
        failed: false,
        cancelled,
    };
    session.talk(&mut line).await;
    session.roll_back();
    database.leave(process);
}

/// Time passes, if the weather wants it.
pub(super) async fn pause(database: &Database) {
    database.tick();
    let pause = {
        let state = &mut *database.state();
        state.weather.pause(&mut state.dice)
    };
    if let Some(pause) = pause {
        tokio::time::sleep(pause).await;
    }
}

/// Nobody hears of the other, until an instance's keep-alives are not answered any more.
fn go_silent(plug: Arc<Plug>) {
    plug.pull(Condition::Silent);
    tokio::spawn(async move {
        tokio::time::sleep(KEEPALIVE).await;
        plug.pull(Condition::Cut);
    });
}

impl Session {
    async fn talk(&mut self, line: &mut ServerEnd) {
        let mut assembly = Assembly::default();
        loop {
            let Some((letter, body)) = self.left_alone(line).await else { return };
            let Some(asked) = assembly.take(letter, &body) else { continue };
            if matches!(asked, Asked::Goodbye) {
                return;
            }
            pause(&self.database).await;
            let fate = {
                let state = &mut *self.database.state();
                state.weather.fate(&mut state.dice)
            };
            if fate == Fate::CutBefore {
                self.note("the line is cut before", &asked);
                return line.plug.pull(Condition::Cut);
            }
            let reply = self.answer(asked, fate).await;
            pause(&self.database).await;
            match fate {
                Fate::CutAfter => return line.plug.pull(Condition::Cut),
                Fate::SilentAfter => go_silent(line.plug.clone()),
                _ => line.send(&reply.0).await,
            }
        }
    }

    /// The next message, unless a transaction is left alone for too long.
    async fn left_alone(&self, line: &mut ServerEnd) -> Option<(u8, Vec<u8>)> {
        match self.transaction.as_ref().and_then(|transaction| transaction.idle_timeout) {
            None => line.message().await,
            Some(timeout) => match tokio::time::timeout(timeout, line.message()).await {
                Ok(message) => message,
                Err(_) => {
                    self.database.log(|| "a transaction was left alone for too long".into());
                    line.plug.pull(Condition::Cut);
                    None
                }
            },
        }
    }

    async fn answer(&mut self, asked: Asked, fate: Fate) -> Reply {
        let mut reply = Reply::default();
        if fate != Fate::Fine {
            self.note(&format!("{fate:?}"), &asked);
        }
        let was_open = self.transaction.is_some();
        let simple = matches!(asked, Asked::Simple(_));
        let done = match fate {
            Fate::Error(fault) if !ends_transaction(&asked) => Err(fault.error()),
            _ => {
                let cancelled = self.cancelled.clone();
                tokio::select! {
                    biased;
                    () = cancelled.notified() => {
                        if let Some(transaction) = &self.transaction {
                            self.database.stop_waiting(transaction);
                        }
                        Err(Fault::Cancelled.error())
                    }
                    done = self.execute(asked) => done,
                }
            }
        };
        match done {
            Ok(rows) if simple => reply.simple(&rows),
            Ok(rows) => reply.typed(&rows),
            Err(error) => {
                if !was_open && !simple {
                    // It was a transaction of its own.
                    self.roll_back();
                }
                self.failed = self.transaction.is_some();
                reply.error(&error);
            }
        }
        reply.ready(match (&self.transaction, self.failed) {
            (None, _) => Standing::Idle,
            (Some(_), false) => Standing::Open,
            (Some(_), true) => Standing::Failed,
        });
        reply
    }

    async fn execute(&mut self, asked: Asked) -> Sql<Rows> {
        match asked {
            Asked::Simple(sql) => self.simple(&sql).await,
            _ if self.failed => Err(aborted()),
            Asked::Typed(sql, parameters) if self.transaction.is_none() => {
                self.transaction = Some(self.database.begin());
                let done = self.typed(&sql, parameters).await?;
                self.commit();
                Ok(done)
            }
            Asked::Typed(sql, parameters) => self.typed(&sql, parameters).await,
            Asked::Goodbye => unreachable!("a goodbye is not answered"),
        }
    }

    async fn simple(&mut self, sql: &str) -> Sql<Rows> {
        match sql {
            "commit" => {
                self.commit();
                return Ok(Rows::none());
            }
            "rollback" => {
                self.roll_back();
                return Ok(Rows::none());
            }
            _ if self.failed => return Err(aborted()),
            _ => {}
        }
        if sql.starts_with("begin") {
            self.transaction = Some(self.database.begin());
        }
        self.script(sql).await
    }

    /// Does what it changed, unless it failed.
    fn commit(&mut self) {
        if self.failed {
            return self.roll_back();
        }
        if let Some(transaction) = self.transaction.take() {
            self.database.commit(transaction, Some(self.instance));
        }
    }

    fn roll_back(&mut self) {
        self.failed = false;
        if let Some(transaction) = self.transaction.take() {
            self.database.roll_back(&transaction);
        }
    }

    fn note(&self, what: &str, asked: &Asked) {
        let instance = self.instance;
        self.database.log(|| {
            let (Asked::Simple(sql) | Asked::Typed(sql, _)) = asked else { return what.into() };
            let sql: Vec<&str> = sql.lines().filter(|line| !line.starts_with("--")).collect();
            let sql: String = sql.join(" ").chars().take(60).collect();
            format!("instance {instance}, {what}: {sql}")
        });
    }
}

fn ends_transaction(asked: &Asked) -> bool {
    matches!(asked, Asked::Simple(sql) if sql == "rollback" || sql == "commit")
}

fn aborted() -> SqlError {
    SqlError { code: "25P02", message: "current transaction is aborted" }
}

impl From<LockTimeout> for SqlError {
    fn from(LockTimeout: LockTimeout) -> Self {
        Self { code: "55P03", message: "canceling statement due to lock timeout" }
    }
}

/// Milliseconds as text, as settings have them.
pub(super) fn millis(text: &str) -> Option<Duration> {
    text.parse().ok().filter(|millis| *millis > 0).map(Duration::from_millis)
}
