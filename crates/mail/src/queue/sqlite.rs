//! SQLite: one thread writes, in groups; another reads.
//!
//! Jobs that arrive while a commit runs form the next transaction, each in a savepoint of its own,
//! and are answered after that is on disk. The file belongs to whoever holds the gate's store
//! beside it, so nobody else writes to it.

use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, params_from_iter};
use tokio::sync::oneshot;
use tollgate::{StoreError, StoreErrorKind};

use super::db::{Db, Dialect, Row, Value, dialect};
use super::records::NotWritten;
use crate::error::MailError;

#[cfg(test)]
mod tests;

mod migrations {
    #![allow(unreachable_pub)]
    refinery::embed_migrations!("migrations/sqlite");
}

/// "Mail" in ASCII: how a file of ours is told from another program's.
const APPLICATION_ID: i32 = 0x4d61_696c;
/// A process that was just told to stop may need a moment to let go of the file.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Jobs in one transaction, at most.
const GROUP: usize = 512;

/// Runs in a transaction, or is told why there is none; what it returns is called with the outcome
/// of the commit.
type Job = Box<dyn FnOnce(Result<&Db<'_>, MailError>) -> Run + Send>;
type Answer = Box<dyn FnOnce(Result<(), NotWritten>) + Send>;

/// A job that ran: whether its changes stay, and whom to answer.
struct Run {
    keep: bool,
    answer: Answer,
}

/// The relay's file, or its memory.
#[derive(Debug)]
pub(crate) struct Sqlite {
    writer: Worker,
    /// In memory there is but one connection.
    reader: Option<Worker>,
}

#[derive(Debug)]
struct Worker {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Writer,
    Reader,
}

impl Sqlite {
    /// Beside the store's file at `store`; `None`: in memory.
    pub(crate) fn open(store: Option<&Path>) -> Result<Self, MailError> {
        let Some(store) = store else {
            let mut connection =
                Connection::open_in_memory().map_err(|error| failed(&error, None))?;
            migrate(&mut connection, None)?;
            return Ok(Self { writer: Worker::start(connection, Role::Writer)?, reader: None });
        };
        let extension = store.extension().map_or("db".into(), |it| it.to_string_lossy());
        let path = crate::secrets::beside(store, "-mail", &extension);
        create_private(&path);
        let mut writing = connect(&path)?;
        migrate(&mut writing, Some(&path))?;
        end_claims(&writing).map_err(|error| failed(&error, Some(&path)))?;
        let reading = connect(&path)?;
        reading
            .pragma_update(None, "query_only", true)
            .map_err(|error| failed(&error, Some(&path)))?;
        Ok(Self {
            writer: Worker::start(writing, Role::Writer)?,
            reader: Some(Worker::start(reading, Role::Reader)?),
        })
    }

    /// Runs `work` in a transaction; the answer comes when it is on disk.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Db<'_>) -> Result<T, MailError> + Send + 'static,
    ) -> Result<T, NotWritten> {
        self.writer.run(work).await
    }

    /// Runs `work` on what is on disk.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Db<'_>) -> Result<T, MailError> + Send + 'static,
    ) -> Result<T, NotWritten> {
        self.reader.as_ref().unwrap_or(&self.writer).run(work).await
    }

    pub(crate) fn close(&self) {
        if let Some(reader) = &self.reader {
            reader.stop();
        }
        self.writer.stop();
    }
}

/// Whoever held a claim is gone, or the file would not be ours: nobody need wait for its lease to end.
fn end_claims(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "update mail_message set lease_until = 0 where state = 2;
         update mail_tenant set report_lease_until = 0 where report_lease_until is not null;",
    )
}

impl Worker {
    fn start(connection: Connection, role: Role) -> Result<Self, MailError> {
        connection.set_prepared_statement_cache_capacity(128);
        let (sender, jobs) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("tollgate-mail".into())
            .spawn(move || work(&Mutex::new(connection), &jobs, role))
            .map_err(|error| MailError::unavailable(format!("no thread starts: {error}")))?;
        Ok(Self { jobs: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Db<'_>) -> Result<T, MailError> + Send + 'static,
    ) -> Result<T, NotWritten> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |db| {
            let result = db.and_then(work);
            let keep = result.is_ok();
            let answer: Answer = Box::new(move |committed| {
                let result = result.map_err(NotWritten::Surely);
                let _ = reply.send(result.and_then(|value| committed.map(|()| value)));
            });
            Run { keep, answer }
        });
        let closed = || MailError::unavailable("the mail relay is closed");
        let sent = self.jobs.lock().as_ref().map(|jobs| jobs.send(job));
        sent.and_then(Result::ok).ok_or_else(closed)?;
        answer.await.map_err(|_| NotWritten::Perhaps(closed()))?
    }

    /// Returns when everything given before is done.
    fn stop(&self) {
        drop(self.jobs.lock().take());
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.close();
    }
}

/// Makes a file that only its owner reads, whatever the umask: messages are in it, and sealed
/// passwords. SQLite gives its log and index the same mode.
fn create_private(path: &Path) {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    drop(options.open(path));
}

fn connect(path: &Path) -> Result<Connection, MailError> {
    let fail = |error| failed(&error, Some(path));
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(fail)?;
    connection.busy_timeout(LOCK_WAIT).map_err(fail)?;
    refuse_foreign(&connection, path)?;
    connection.pragma_update(None, "journal_mode", "wal").map_err(fail)?;
    connection.pragma_update(None, "synchronous", "full").map_err(fail)?;
    Ok(connection)
}

/// Before anything is written: another program's file stays as it is.
fn refuse_foreign(connection: &Connection, path: &Path) -> Result<(), MailError> {
    let fail = |error| failed(&error, Some(path));
    let id: i32 =
        connection.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(fail)?;
    let foreign = connection
        .query_row(
            "select count(*) > 0 and sum(name = 'refinery_schema_history') = 0 from sqlite_schema",
            [],
            |row| row.get::<_, Option<bool>>(0),
        )
        .map_err(fail)?;
    if (id != 0 && id != APPLICATION_ID) || (id == 0 && foreign == Some(true)) {
        let shown = path.display();
        return Err(MailError::unavailable(format!(
            "{shown} is a SQLite database of another program: move it away, or choose another \
             file for the store"
        )));
    }
    Ok(())
}

fn migrate(connection: &mut Connection, path: Option<&Path>) -> Result<(), MailError> {
    let fail = |error| failed(&error, path);
    // In one transaction: a step and the note that it was taken must not be two.
    migrations::migrations::runner().set_grouped(true).run(connection).map_err(|error| {
        MailError::unavailable(format!("the mail tables cannot be brought up to date: {error}"))
    })?;
    connection.pragma_update(None, "application_id", APPLICATION_ID).map_err(fail)
}

/// The thread: a group of jobs, a commit, their answers; until nobody can send any more.
fn work(connection: &Mutex<Connection>, jobs: &mpsc::Receiver<Job>, role: Role) {
    while let Ok(first) = jobs.recv() {
        let group: Vec<Job> =
            std::iter::once(first).chain(jobs.try_iter().take(GROUP - 1)).collect();
        let mut answers = Vec::with_capacity(group.len());
        let committed = commit(connection, group, role, &mut answers);
        if let Err(NotWritten::Surely(error) | NotWritten::Perhaps(error)) = &committed {
            tracing::error!(%error, "the mail relay could not write");
            let _ = connection.lock().execute_batch("rollback");
        }
        for answer in answers {
            answer(committed.clone());
        }
    }
    let _ = connection.lock().execute_batch("pragma wal_checkpoint(truncate)");
}

fn commit(
    connection: &Mutex<Connection>,
    group: Vec<Job>,
    role: Role,
    answers: &mut Vec<Answer>,
) -> Result<(), NotWritten> {
    let execute = |sql| connection.lock().execute_batch(sql).map_err(|error| failed(&error, None));
    let begun = execute(if role == Role::Writer { "begin immediate" } else { "begin" });
    let db = Db::Sqlite(connection);
    let mut failed = begun.err();
    for job in group {
        match &failed {
            None => failed = run_job(&db, job, answers, &execute).err(),
            // Nothing runs once the file has failed.
            Some(error) => answers.push(job(Err(error.clone())).answer),
        }
    }
    match failed {
        Some(error) => Err(NotWritten::Surely(error)),
        None => connection.lock().execute_batch("commit").map_err(|error| not_committed(&error)),
    }
}

/// A commit that finds the disk full has not written its last page, without which the others count
/// for nothing, and is rolled back. Of any other failure nobody knows how far it got: the page may
/// be there and be read after a crash.
fn not_committed(error: &rusqlite::Error) -> NotWritten {
    let told = failed(error, None);
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => NotWritten::Surely(told),
        _ => NotWritten::Perhaps(told),
    }
}

fn run_job(
    db: &Db<'_>,
    job: Job,
    answers: &mut Vec<Answer>,
    execute: &impl Fn(&'static str) -> Result<(), MailError>,
) -> Result<(), MailError> {
    execute("savepoint job")?;
    // A job that panics drops its reply: its caller gets an error, the others go on.
    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(Ok(db))));
    let keep = run.as_ref().is_ok_and(|run| run.keep);
    answers.extend(run.map(|run| run.answer));
    if !keep {
        execute("rollback to job")?;
    }
    execute("release job")
}

/// Runs one statement on the thread's own connection.
pub(super) fn rows(
    connection: &Connection,
    sql: &'static str,
    values: &[Value],
) -> Result<Vec<Row>, MailError> {
    let fail = |error| failed(&error, None);
    let mut statement = connection.prepare_cached(&dialect(sql, Dialect::Sqlite)).map_err(fail)?;
    let columns = statement.column_count();
    let mut found = statement.query(params_from_iter(values)).map_err(fail)?;
    let mut rows = Vec::new();
    while let Some(row) = found.next().map_err(fail)? {
        let value = |column| row.get_ref(column).map(value_of).map_err(fail);
        rows.push(Row((0..columns).map(value).collect::<Result<_, _>>()?));
    }
    Ok(rows)
}

pub(super) fn change(
    connection: &Connection,
    sql: &'static str,
    values: &[Value],
) -> Result<u64, MailError> {
    let fail = |error| failed(&error, None);
    let mut statement = connection.prepare_cached(&dialect(sql, Dialect::Sqlite)).map_err(fail)?;
    Ok(statement.execute(params_from_iter(values)).map_err(fail)? as u64)
}

fn value_of(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Integer(value) => Value::Int(Some(value)),
        ValueRef::Text(text) => Value::Text(Some(String::from_utf8_lossy(text).into_owned())),
        ValueRef::Blob(bytes) => Value::Bytes(Some(bytes.to_vec())),
        ValueRef::Null | ValueRef::Real(_) => Value::Int(None),
    }
}

fn failed(error: &rusqlite::Error, path: Option<&Path>) -> MailError {
    let shown = path.map_or("the mail relay's file".into(), |path| path.display().to_string());
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            StoreErrorKind::Contended,
            format!("{shown} is in use by another process: stop that one"),
        ),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => (
            StoreErrorKind::Corrupt,
            format!("{shown} is not a sound database ({error}): restore it from a backup"),
        ),
        Some(ErrorCode::DiskFull) => (
            StoreErrorKind::Unavailable,
            format!("the disk of {shown} is full: free some space, writing goes on by itself"),
        ),
        _ => (
            StoreErrorKind::Unavailable,
            format!("{shown} cannot be used ({error}): check its disk and its rights"),
        ),
    };
    MailError::Store(StoreError::new(kind, message))
}
