//! Opening the file: exclusive, ours, sound, migrated; and reading the counts back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use tollgate_core::store::{Key, StoreError};
use tollgate_core::{Instant, Reader};

use crate::error::{damaged, foreign, unusable};
use crate::fold::{Unfolded, last_changes};
use crate::journal::is_whole;
use crate::shards::Shards;

mod migrations {
    #![allow(unreachable_pub)]
    refinery::embed_migrations!("migrations");
}

/// "Toll" in ASCII: how a file of ours is told from another program's.
const APPLICATION_ID: i32 = 0x546f_6c6c;
/// A process that was just told to stop may need a moment to let go of the file.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// Where the store lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    Memory,
    File(PathBuf),
}

impl Home {
    /// For messages.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Memory => Path::new(":memory:"),
            Self::File(path) => path,
        }
    }
}

pub(crate) fn open(home: &Home) -> Result<Connection, StoreError> {
    let path = home.path();
    let fail = |error| unusable(path, error);
    let mut connection = match home {
        Home::Memory => Connection::open_in_memory().map_err(fail)?,
        Home::File(path) => {
            create_private(path);
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
                | OpenFlags::SQLITE_OPEN_CREATE
                | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            Connection::open_with_flags(path, flags).map_err(fail)?
        }
    };
    connection.busy_timeout(LOCK_WAIT).map_err(fail)?;
    // A statement is planned once. Without this, each new value bound to one may plan it again.
    // Not for a schema with partial indexes: only a value says whether one of those will do.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(fail)?;
    connection.pragma_update(None, "locking_mode", "exclusive").map_err(fail)?;
    refuse_foreign(&connection, path)?;
    connection.pragma_update(None, "journal_mode", "wal").map_err(fail)?;
    connection.pragma_update(None, "synchronous", "full").map_err(fail)?;
    // Takes the exclusive lock now, not at the first write.
    connection.execute_batch("begin immediate; commit").map_err(fail)?;
    migrate(&mut connection, path)?;
    // Only once: an open that is refused further on must leave the file as it was.
    if application_id(&connection).map_err(fail)? != APPLICATION_ID {
        connection.pragma_update(None, "application_id", APPLICATION_ID).map_err(fail)?;
    }
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Makes a file that only its owner reads, whatever the umask: the store's secret is in it. SQLite
/// gives its log the same mode. A file that is there keeps the mode it was given, and why one
/// cannot be made is SQLite's to say.
fn create_private(path: &Path) {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    drop(options.open(path));
}

fn refuse_foreign(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let fail = |error| unusable(path, error);
    let id = application_id(connection).map_err(fail)?;
    let tables: i64 = connection
        .query_row("select count(*) from sqlite_schema", [], |row| row.get(0))
        .map_err(fail)?;
    // A start that was cut short may leave tables before the mark: ours have a migration history.
    let ours: i64 = connection
        .query_row(
            "select count(*) from sqlite_schema where name = 'refinery_schema_history'",
            [],
            |row| row.get(0),
        )
        .map_err(fail)?;
    if (id == 0 && (tables == 0 || ours == 1)) || id == APPLICATION_ID {
        Ok(())
    } else {
        Err(foreign(path))
    }
}

fn application_id(connection: &Connection) -> Result<i32, rusqlite::Error> {
    connection.pragma_query_value(None, "application_id", |row| row.get(0))
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    // In one transaction: or else a step and the note that it was taken are two, and who dies between them
    // leaves a file that nobody can open.
    let migrated = migrations::migrations::runner().set_grouped(true).run(connection);
    migrated.map_err(|error| match fault_of_the_disk(&error) {
        Some(fault) => unusable(path, fault),
        None => damaged(path, "a schema").with_source(error),
    })?;
    Ok(())
}

/// What SQLite said about a migration, if that is not about what stands in the file.
fn fault_of_the_disk(error: &(dyn std::error::Error + 'static)) -> Option<rusqlite::Error> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let cause = causes.find_map(|cause| cause.downcast_ref::<rusqlite::Error>())?;
    let rusqlite::Error::SqliteFailure(fault, message) = cause else { return None };
    let is_of_the_file = matches!(
        fault.code,
        ErrorCode::Unknown
            | ErrorCode::ConstraintViolation
            | ErrorCode::TypeMismatch
            | ErrorCode::TooBig
            | ErrorCode::SchemaChanged
    );
    (!is_of_the_file).then(|| rusqlite::Error::SqliteFailure(*fault, message.clone()))
}

/// Reads every count back into memory. The cuts that are still to be folded come back with it.
pub(crate) fn load_counts(
    connection: &Connection,
    path: &Path,
    shards: &Shards,
) -> Result<Unfolded, StoreError> {
    let fail = |error| unusable(path, error);
    let load = |key: &[u8], state: &[u8]| -> Result<(), StoreError> {
        let mut reader = Reader(state);
        let state = reader.state().map_err(|_| damaged(path, "a count"))?;
        reader.end().map_err(|_| damaged(path, "a count"))?;
        let key = Key::parse(key).ok_or_else(|| damaged(path, "a key"))?;
        shards.load(key, state);
        Ok(())
    };
    let (cuts, last_id) = read_cuts(connection, path)?;
    let newer = last_changes(&cuts);
    let mut statement = connection.prepare("select key, state from counter").map_err(fail)?;
    let mut rows = statement.query([]).map_err(fail)?;
    while let Some(row) = rows.next().map_err(fail)? {
        let key = row.get_ref(0).map_err(fail)?.as_blob().map_err(|_| damaged(path, "a key"))?;
        let state = row.get_ref(1).map_err(fail)?.as_blob();
        let state = state.map_err(|_| damaged(path, "a count"))?;
        if !newer.contains_key(key) {
            load(key, state)?;
        }
    }
    for (key, state) in &newer {
        if let Some(state) = state {
            load(key, state)?;
        }
    }
    drop(newer);
    Ok(Unfolded::of(cuts, last_id))
}

/// Oldest first, and the id of the newest.
fn read_cuts(connection: &Connection, path: &Path) -> Result<(Vec<Vec<u8>>, i64), StoreError> {
    let fail = |error| unusable(path, error);
    let sql = "select id, changes from cut order by id";
    let mut statement = connection.prepare(sql).map_err(fail)?;
    let mut rows = statement.query([]).map_err(fail)?;
    let (mut cuts, mut last_id) = (Vec::new(), 0);
    while let Some(row) = rows.next().map_err(fail)? {
        last_id = row.get(0).map_err(fail)?;
        let cut = row.get_ref(1).map_err(fail)?.as_blob();
        let cut = cut.ok().filter(|cut| is_whole(cut)).ok_or_else(|| damaged(path, "a cut"))?;
        cuts.push(cut.to_vec());
    }
    Ok((cuts, last_id))
}

/// The instant up to which idle keys were ever removed: no decision may be made before it.
pub(crate) fn load_swept_at(connection: &Connection, path: &Path) -> Result<Instant, StoreError> {
    let micros =
        connection.query_row("select value from setting where name = 'swept_at'", [], |row| {
            row.get::<_, i64>(0)
        });
    match micros {
        Ok(micros) => Ok(Instant::from_micros(micros)),
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(Instant::MIN),
        Err(error) => Err(unusable(path, error)),
    }
}

/// Notes that a run began. Its spends are named by `run`.
pub(crate) fn begin_run(
    connection: &Connection,
    path: &Path,
    run: u64,
    now: Instant,
) -> Result<(), StoreError> {
    connection
        .execute(
            "insert into run (id, started_at, committed_sequence) values (?1, ?2, 0)",
            params![run.cast_signed(), now.as_micros()],
        )
        .map_err(|error| unusable(path, error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tollgate_core::store::StoreErrorKind;

    use super::*;

    fn failed_migration(prepare: &str) -> StoreError {
        let mut connection = Connection::open_in_memory().expect("memory opens");
        connection.execute_batch(prepare).expect("prepared");
        migrate(&mut connection, Path::new("t.db")).expect_err("it cannot be migrated")
    }

    #[test]
    fn a_migration_that_was_cut_short_leaves_nothing_behind() {
        let mut connection = Connection::open_in_memory().expect("memory opens");
        let note_fails = "create table refinery_schema_history (version int4 primary key, \
             name varchar(255), applied_on varchar(255), checksum varchar(255)); \
             create trigger cut_short before insert on refinery_schema_history \
             when new.version = 3 begin select raise(abort, 'the power is gone'); end";
        connection.execute_batch(note_fails).expect("prepared");
        migrate(&mut connection, Path::new("t.db")).expect_err("the third step is not noted");
        connection.execute_batch("drop trigger cut_short").expect("dropped");
        migrate(&mut connection, Path::new("t.db")).expect("all steps are taken again");
    }

    #[test]
    fn a_disk_that_is_full_is_not_told_as_damage() {
        let full = failed_migration("pragma max_page_count = 2");
        assert_eq!(full.kind(), StoreErrorKind::Unavailable);
        assert!(full.to_string().contains("is full: free some space"), "{full}");
        let damaged = failed_migration("create table counter (other)");
        assert_eq!(damaged.kind(), StoreErrorKind::Corrupt);
        assert!(damaged.to_string().contains("a schema that cannot be read"), "{damaged}");
    }
}
