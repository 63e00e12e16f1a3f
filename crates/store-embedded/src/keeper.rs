//! The one thread that owns the file: commits in groups, runs rare operations, removes idle keys.
//!
//! A rare operation (a refund, a policy, a request under an idempotency key) is a job that runs
//! here, one after the other, inside the same transaction as the counts it changes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant as Moment};

use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};
use tollgate_core::Instant;
use tollgate_core::store::StoreError;

use crate::Inner;
use crate::error::{job_panicked, stopped_early, unusable};
use crate::fold::Unfolded;
use crate::journal::{Turn, Waiter, Work};
use crate::shards::Shards;
use crate::slots::{Books, remove_old};

/// Runs in the keeper's transaction, or is told why there is none; what it returns is called with
/// the outcome of the commit.
pub(crate) type Job = Box<dyn FnOnce(Result<&mut Txn<'_>, StoreError>) -> AfterCommit + Send>;
pub(crate) type AfterCommit = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// All shards are swept once in ten of these.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const SHARDS_PER_SWEEP: usize = Shards::shard_count().div_ceil(10);
/// After this many keys the rest waits for the next sweep.
const KEYS_PER_SWEEP: usize = 5_000;
/// Expired rows of another table removed at once. Tests have few, and pages all the same.
const ROWS_PER_SWEEP: i64 = if cfg!(test) { 2 } else { 20_000 };

/// The transaction a job runs in.
pub(crate) struct Txn<'a> {
    pub(crate) inner: &'a Inner,
    connection: &'a Connection,
    with_counts: &'a mut Vec<Statement>,
    /// What the job wrote so far: executed once it has ended well.
    written: Vec<Statement>,
    /// The first write that failed: the whole group fails with it.
    failed: &'a mut Option<StoreError>,
    /// As after the transaction: the keeper drops them if it fails.
    pub(crate) books: &'a mut Books,
}

/// A write that must reach the file together with counts that memory already holds.
struct Statement {
    sql: &'static str,
    values: Vec<Value>,
}

impl Txn<'_> {
    pub(crate) fn read(&self) -> &Connection {
        self.connection
    }

    pub(crate) fn fail(&self, error: rusqlite::Error) -> StoreError {
        unusable(self.inner.home.path(), error)
    }

    /// A write of its own: if the job or the commit fails it is gone, and the caller told so. The
    /// same job does not read it.
    pub(crate) fn write(&mut self, sql: &'static str, values: Vec<Value>) {
        self.written.push(Statement { sql, values });
    }

    /// A write that belongs to counts changed in memory by the same job, whatever becomes of that:
    /// if the commit fails it is kept with them and tried again.
    pub(crate) fn write_with_counts(&mut self, sql: &'static str, values: Vec<Value>) {
        self.execute(sql, values.clone());
        self.with_counts.push(Statement { sql, values });
    }

    fn execute(&mut self, sql: &'static str, values: Vec<Value>) {
        if self.failed.is_none()
            && let Err(error) = execute(self.connection, sql, values)
        {
            *self.failed = Some(self.fail(error));
        }
    }

    /// Runs a job. It writes all or nothing: one transaction holds what many jobs write.
    pub(crate) fn attempt<T>(
        &mut self,
        job: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let result = catch_unwind(AssertUnwindSafe(|| job(self))).unwrap_or_else(|_| {
            self.books.clear();
            Err(job_panicked())
        });
        let written = std::mem::take(&mut self.written);
        if result.is_ok() {
            for Statement { sql, values } in written {
                self.execute(sql, values);
            }
        }
        result
    }
}

fn execute(
    connection: &Connection,
    sql: &'static str,
    values: Vec<Value>,
) -> Result<(), rusqlite::Error> {
    connection.prepare_cached(sql)?.execute(params_from_iter(values)).map(drop)
}

pub(crate) struct Keeper {
    inner: Arc<Inner>,
    connection: Connection,
    /// What memory holds and a failed commit could not write, oldest first.
    backlog: Backlog,
    unfolded: Unfolded,
    books: Books,
    next_shard: usize,
    /// Whether the last commit failed.
    is_failing: bool,
    committed_sequence: u64,
}

#[derive(Default)]
struct Backlog {
    cuts: Vec<Vec<u8>>,
    statements: Vec<Statement>,
}

impl Keeper {
    pub(crate) fn new(inner: Arc<Inner>, connection: Connection, unfolded: Unfolded) -> Self {
        Self {
            inner,
            connection,
            backlog: Backlog::default(),
            unfolded,
            books: Books::default(),
            next_shard: 0,
            is_failing: false,
            committed_sequence: 0,
        }
    }

    /// Returns when the store is closed and everything decided is in the file.
    pub(crate) fn run(mut self) {
        let inner = self.inner.clone();
        let _alarm = Alarm(&inner);
        let mut last_sweep = Moment::now();
        let mut removal = Removal::new();
        let mut is_folding = false;
        loop {
            // Between two parts of a fold there is a look at the queue, and no wait.
            let idle = if is_folding { Duration::ZERO } else { removal.pause };
            is_folding = false;
            match inner.journal.next_work(idle) {
                Work::Jobs(jobs) => self.commit(jobs, Turn::Ordinary),
                Work::Idle => is_folding = self.fold_part(),
                Work::Close(jobs) => {
                    self.commit(jobs, Turn::Last);
                    self.fold_all();
                    break;
                }
            }
            if last_sweep.elapsed() >= SWEEP_EVERY {
                self.sweep(SHARDS_PER_SWEEP);
                last_sweep = Moment::now();
            }
            if removal.is_due() {
                removal.run(|| self.remove_rows());
            }
        }
        // Folds the log into the file, so that a closed store is one file.
        let _ = self.connection.execute_batch("pragma wal_checkpoint(truncate)");
    }

    /// One group: the jobs, and all decisions up to now, in one transaction.
    fn commit(&mut self, jobs: Vec<Job>, turn: Turn) {
        let mut after = Vec::with_capacity(jobs.len());
        let mut waiters = Vec::new();
        let result = self.try_commit(jobs, turn, &mut after, &mut waiters);
        match &result {
            Ok(()) => {
                self.unfolded.committed(std::mem::take(&mut self.backlog).cuts);
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("commits succeed again");
                }
            }
            Err(error) => {
                // Once: it is tried again many times a second.
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(%error, "commit failed; counts are kept in memory and tried again");
                }
                self.inner.stats.store_error();
                let _ = self.connection.execute_batch("rollback");
                self.books.clear();
            }
        }
        self.inner.journal.settle(&result);
        for waiter in waiters {
            let _ = waiter.send(result.clone());
        }
        for done in after {
            done(result.clone());
        }
    }

    fn try_commit(
        &mut self,
        jobs: Vec<Job>,
        turn: Turn,
        after: &mut Vec<AfterCommit>,
        waiters: &mut Vec<Waiter>,
    ) -> Result<(), StoreError> {
        let path = self.inner.home.path();
        let fail = |error| unusable(path, error);
        let begun = self.connection.execute_batch("begin immediate").map_err(fail);
        let begun = begun.and_then(|()| self.backlog.write(&self.connection).map_err(fail));
        let mut failed = begun.err();
        self.books.begin_group();
        for job in jobs {
            let mut txn = Txn {
                inner: &self.inner,
                connection: &self.connection,
                with_counts: &mut self.backlog.statements,
                written: Vec::new(),
                failed: &mut failed,
                books: &mut self.books,
            };
            // No job runs once the file has failed: it would change counts in memory.
            let given = match txn.failed.clone() {
                None => Ok(&mut txn),
                Some(error) => Err(error),
            };
            // A job that panics drops its reply: its caller gets an error, the others go on.
            match catch_unwind(AssertUnwindSafe(|| job(given))) {
                Ok(done) => after.push(done),
                Err(_) => self.books.clear(),
            }
            // Some failures make SQLite end the transaction by itself; nothing may follow then.
            if failed.is_none() && self.connection.is_autocommit() {
                failed = Some(stopped_early(path));
            }
        }
        // Only now, so that what the jobs decided is in the same cut as what they wrote.
        let cut = self.inner.journal.cut(turn);
        waiters.extend(cut.waiters);
        if !cut.changes.is_empty() {
            self.backlog.cuts.push(cut.changes);
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if !self.backlog.cuts.is_empty() {
            self.unfolded.write(&self.connection, &self.backlog.cuts).map_err(fail)?;
            self.write_progress(cut.sequence).map_err(fail)?;
        }
        self.unfolded.write_part(&self.connection).map_err(fail)?;
        self.connection.execute_batch("commit").map_err(fail)?;
        self.inner.stats.batch(cut.sequence - self.committed_sequence);
        self.committed_sequence = cut.sequence;
        Ok(())
    }

    /// Everything decided is in the table of counts then.
    fn fold_all(&mut self) {
        let folded = self.unfolded.fold_all(&self.connection);
        folded.unwrap_or_else(|error| self.fold_later(&error));
    }

    /// A short transaction: whoever comes meanwhile waits for no more. Whether there is more to do.
    fn fold_part(&mut self) -> bool {
        self.unfolded.fold_part(&self.connection).unwrap_or_else(|error| {
            self.fold_later(&error);
            false
        })
    }

    fn fold_later(&self, error: &rusqlite::Error) {
        let _ = self.connection.execute_batch("rollback");
        tracing::warn!(%error, "counts stay in cuts; they are folded later");
    }

    fn write_progress(&self, sequence: u64) -> Result<(), rusqlite::Error> {
        self.connection
            .prepare_cached("update run set committed_sequence = ?2 where id = ?1")?
            .execute(params![self.inner.run.cast_signed(), sequence.cast_signed()])?;
        self.write_swept_at()
    }

    fn write_swept_at(&self) -> Result<(), rusqlite::Error> {
        self.connection
            .prepare_cached("insert or replace into setting (name, value) values ('swept_at', ?1)")?
            .execute(params![self.inner.swept_at().as_micros()])
            .map(drop)
    }

    fn sweep(&mut self, shard_count: usize) {
        let now = self.inner.now();
        let mut removed = 0;
        for _ in 0..shard_count {
            removed += self.inner.sweep_shard(self.next_shard, now);
            self.next_shard = (self.next_shard + 1) % Shards::shard_count();
            // The rest next time: a commit must stay short, also when a million windows end at once.
            if removed >= KEYS_PER_SWEEP {
                break;
            }
        }
    }

    /// Whether there may be more.
    fn remove_rows(&self) -> bool {
        self.remove_expired_rows(self.inner.now()).unwrap_or_else(|error| {
            let _ = self.connection.execute_batch("rollback");
            tracing::warn!(%error, "expired rows were not removed; tried again later");
            false
        })
    }

    /// Together with how far the sweep got: what is gone must not be decided about by an earlier
    /// clock, also after a restart.
    fn remove_expired_rows(&self, now: Instant) -> Result<bool, rusqlite::Error> {
        self.connection.execute_batch("begin immediate")?;
        let mut latest = None;
        let mut is_more = false;
        for sql in [
            "delete from record where id in \
             (select id from record where expires_at <= ?1 limit ?2) returning expires_at",
            "delete from refund where (run, sequence) in \
             (select run, sequence from refund where expires_at <= ?1 limit ?2) \
             returning expires_at",
        ] {
            let mut statement = self.connection.prepare_cached(sql)?;
            let mut removed = statement.query(params![now.as_micros(), ROWS_PER_SWEEP])?;
            let mut count = 0;
            while let Some(row) = removed.next()? {
                latest = latest.max(Some(Instant::from_micros(row.get(0)?)));
                count += 1;
            }
            is_more |= count == ROWS_PER_SWEEP;
        }
        is_more |= remove_old(&self.connection, now)?;
        if let Some(latest) = latest {
            self.inner.raise_swept_at(latest);
            self.write_swept_at()?;
        }
        self.connection.execute_batch("commit")?;
        Ok(is_more)
    }
}

/// When expired rows are removed: once a second, and while there are more of them half of the time,
/// so that no load adds more than is removed.
struct Removal {
    last: Moment,
    pause: Duration,
}

impl Removal {
    fn new() -> Self {
        Self { last: Moment::now(), pause: SWEEP_EVERY }
    }

    fn is_due(&self) -> bool {
        self.last.elapsed() >= self.pause
    }

    /// `remove` says whether there may be more.
    fn run(&mut self, remove: impl FnOnce() -> bool) {
        let begun = Moment::now();
        let is_more = remove();
        self.last = Moment::now();
        self.pause = if is_more { self.last - begun } else { SWEEP_EVERY };
    }
}

impl Backlog {
    fn write(&self, connection: &Connection) -> Result<(), rusqlite::Error> {
        for statement in &self.statements {
            execute(connection, statement.sql, statement.values.clone())?;
        }
        Ok(())
    }
}

/// Marks the store as failed if the keeper stops for any reason but a close.
struct Alarm<'a>(&'a Inner);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.journal.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_removed_for_half_of_the_time_at_most() {
        let mut removal = Removal::new();
        assert!(!removal.is_due(), "a second after the start");
        let takes = Duration::from_millis(30);
        removal.run(|| {
            std::thread::sleep(takes);
            true
        });
        assert!(removal.pause >= takes && removal.pause < SWEEP_EVERY, "{:?}", removal.pause);
        removal.run(|| false);
        assert_eq!(removal.pause, SWEEP_EVERY, "none is left");
    }
}
