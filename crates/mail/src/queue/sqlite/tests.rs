//! Files that are cut short or full.

use super::*;

#[test]
fn a_migration_that_was_cut_short_leaves_nothing_behind() {
    let mut connection = Connection::open_in_memory().unwrap();
    let note_fails = "create table refinery_schema_history (version int4 primary key, \
         name varchar(255), applied_on varchar(255), checksum varchar(255)); \
         create trigger cut_short before insert on refinery_schema_history \
         when new.version = 2 begin select raise(abort, 'the power is gone'); end";
    connection.execute_batch(note_fails).unwrap();
    migrate(&mut connection, None).unwrap_err();
    connection.execute_batch("drop trigger cut_short").unwrap();
    migrate(&mut connection, None).unwrap();
}

#[test]
fn only_a_commit_on_a_full_disk_has_surely_not_happened() {
    let failed = |code| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
    let full = not_committed(&failed(rusqlite::ffi::SQLITE_FULL));
    assert!(matches!(full, NotWritten::Surely(_)), "{full:?}");
    for code in [rusqlite::ffi::SQLITE_IOERR_FSYNC, rusqlite::ffi::SQLITE_BUSY] {
        let doubtful = not_committed(&failed(code));
        assert!(matches!(doubtful, NotWritten::Perhaps(_)), "{doubtful:?}");
    }
}

/// One transaction: the first writes, the second finds no room, and SQLite rolls back both.
#[tokio::test]
async fn whom_a_full_disk_takes_along_was_surely_not_written() {
    let sqlite = Sqlite::open(None).unwrap();
    let ((begin, begun), (go, wait)) = (oneshot::channel(), mpsc::channel());
    let pause = sqlite.write(move |_| {
        begin.send(()).unwrap();
        wait.recv().unwrap();
        Ok(())
    });
    let small = sqlite.write(|db| put(db, 10));
    let large = sqlite.write(|db| {
        db_run("pragma max_page_count = 1", db)?;
        put(db, 1_000_000)
    });
    // What comes while the thread is busy is its next transaction.
    let both = async {
        begun.await.unwrap();
        tokio::join!(biased; small, large, async { go.send(()).unwrap() })
    };
    let (paused, (small, large, ())) = tokio::join!(pause, both);
    paused.unwrap();
    for not in [small, large] {
        assert!(matches!(&not, Err(NotWritten::Surely(_))), "{not:?}");
    }
    let kept = sqlite.read(|db| db_run("select 1 from mail_content", db)).await.unwrap();
    assert_eq!(kept, 0);
}

fn put(db: &Db<'_>, bytes: i64) -> Result<usize, MailError> {
    let Db::Sqlite(connection) = db else { unreachable!("it is SQLite") };
    let sql = "insert into mail_content (bytes) values (zeroblob(?1))";
    rows(&connection.lock(), sql, &[Value::Int(Some(bytes))]).map(|rows| rows.len())
}

fn db_run(sql: &'static str, db: &Db<'_>) -> Result<usize, MailError> {
    let Db::Sqlite(connection) = db else { unreachable!("it is SQLite") };
    rows(&connection.lock(), sql, &[]).map(|rows| rows.len())
}
