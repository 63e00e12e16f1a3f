//! Files that are not what the store wrote, and places it cannot write: a clear error each time,
//! and not a byte of theirs is touched.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use tempfile::TempDir;
use tollgate_core::store::{Ask, Clock, Durability, Key, KeyedClaim, StoreError, StoreErrorKind};
use tollgate_core::{Claim, Cost, Decision, Instant, Intent, Rule, Span, Window};
use tollgate_store_embedded::Embedded;

const KEYS: u64 = 2_000;
const PAGE: usize = 4096;

#[derive(Debug)]
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Instant {
        Instant::from_secs(1_772_714_096)
    }
}

fn open(path: &Path) -> Result<Embedded, StoreError> {
    Embedded::open(path, Arc::new(Stopped))
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.db");
    (folder, file)
}

fn ask(store: &Embedded, intent: Intent, key: u64) -> u64 {
    let rule = Rule::Fixed(Window::Span(Span::from_secs(3600)));
    let quota = rule.quota(1_000_000);
    let claim = Claim { rule: &rule, quota: &quota, shadow: false };
    let key = format!("a key that is long enough to fill some pages {key}");
    let claims = [KeyedClaim { claim, key: Key { limit: 0, values: key.as_bytes() } }];
    let cost = Cost::new(1).unwrap();
    let ask = Ask {
        intent,
        cost,
        durability: Durability::Interval,
        epoch: None,
        crux: 0,
        claims: &claims,
    };
    let mut decision = Decision::blank();
    store.check_blocking(&ask, &mut decision).unwrap();
    decision.limits[0].standing.used
}

/// A closed file with counts in it: each key was used as often as its number says, up to three.
fn filled(file: &Path) {
    let store = open(file).unwrap();
    for key in 0..KEYS {
        for _ in 0..=key % 3 {
            ask(&store, Intent::Spend, key);
        }
    }
    store.close();
}

fn counts_are_right(store: &Embedded) -> bool {
    (0..KEYS).all(|key| ask(store, Intent::Peek, key) == key % 3 + 1)
}

/// The store refuses the file with this kind and these words, and leaves it as it is.
fn refuses(file: &Path, kind: StoreErrorKind, words: &[&str]) {
    let before = std::fs::read(file).unwrap();
    let error = open(file).expect_err("a file that cannot be used");
    let message = error.to_string();
    assert_eq!(error.kind(), kind, "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
    assert!(message.contains(&*file.to_string_lossy()), "it names the file: {message}");
    assert!(before == std::fs::read(file).unwrap(), "the file was changed");
    // Nor is anything left beside it.
    for beside in ["-wal", "-journal", "-shm"] {
        let beside = PathBuf::from(format!("{}{beside}", file.display()));
        assert!(!beside.exists(), "{} was left behind", beside.display());
    }
}

#[test]
fn a_sound_file_is_opened() {
    let (_folder, file) = folder();
    filled(&file);
    assert!(counts_are_right(&open(&file).unwrap()));
}

#[test]
fn a_text_file_is_refused() {
    let (_folder, file) = folder();
    for text in ["hello", &"some other document\n".repeat(1000)] {
        std::fs::write(&file, text).unwrap();
        refuses(&file, StoreErrorKind::Corrupt, &["not a sound tollgate database"]);
    }
}

#[test]
fn a_database_of_another_program_is_refused() {
    let (_folder, file) = folder();
    for sql in [
        "create table invoice (id integer primary key, total integer)",
        "pragma application_id = 252006673",
        "pragma journal_mode = wal; create table counter (key blob, state blob)",
    ] {
        let _ = std::fs::remove_file(&file);
        Connection::open(&file).unwrap().execute_batch(sql).unwrap();
        refuses(&file, StoreErrorKind::Corrupt, &["another program", "--store"]);
    }
}

#[test]
fn an_overwritten_header_is_refused() {
    let (_folder, file) = folder();
    filled(&file);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[..16].fill(b'x');
    std::fs::write(&file, bytes).unwrap();
    refuses(&file, StoreErrorKind::Corrupt, &["restore it from a backup"]);
}

#[test]
fn a_truncated_file_is_refused() {
    let (_folder, file) = folder();
    filled(&file);
    let bytes = std::fs::read(&file).unwrap();
    for length in [bytes.len() / 2, bytes.len() / 2 + 100, bytes.len() - PAGE, 2 * PAGE, 100] {
        std::fs::write(&file, &bytes[..length]).unwrap();
        refuses(&file, StoreErrorKind::Corrupt, &["restore it from a backup"]);
    }
}

/// Whichever page is damaged: it is noticed, or it holds no count.
#[test]
fn a_damaged_page_is_refused_or_holds_no_count() {
    let (_folder, file) = folder();
    filled(&file);
    let connection = Connection::open(&file).unwrap();
    let free: i64 = connection.query_row("pragma freelist_count", [], |row| row.get(0)).unwrap();
    drop(connection);
    let sound = std::fs::read(&file).unwrap();
    let mut refused = 0;
    for page in (1..sound.len() / PAGE).step_by(3) {
        let mut bytes = sound.clone();
        bytes[page * PAGE..page * PAGE + 16].fill(0xff);
        std::fs::write(&file, &bytes).unwrap();
        match open(&file) {
            Ok(store) => assert!(counts_are_right(&store), "page {page} is damaged"),
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Corrupt, "page {page}: {error}");
                assert!(std::fs::read(&file).unwrap() == bytes, "page {page}: the file changed");
                refused += 1;
            }
        }
    }
    let used = sound.len() / PAGE - free as usize;
    assert!(refused > used / 6, "only {refused} damaged pages of {used} in use were noticed");
}

#[test]
fn a_cut_that_cannot_be_read_is_refused() {
    let (_folder, file) = folder();
    filled(&file);
    for bytes in ["x'ff'", "x'0100000061'", "x'010000006107'", "x'01000000610101000000'", "7"] {
        let connection = Connection::open(&file).unwrap();
        connection
            .execute_batch(&format!("insert or replace into cut values (1, {bytes})"))
            .unwrap();
        connection.close().unwrap();
        refuses(&file, StoreErrorKind::Corrupt, &["a cut that cannot be read"]);
    }
}

#[test]
fn a_count_that_cannot_be_read_is_refused() {
    let (_folder, file) = folder();
    filled(&file);
    for sql in [
        "update counter set state = x'ff00' where key = (select max(key) from counter)",
        "update counter set state = state || x'00' where key = (select max(key) from counter)",
        "update counter set state = 7 where key = (select max(key) from counter)",
    ] {
        let connection = Connection::open(&file).unwrap();
        connection.execute_batch(sql).unwrap();
        connection.close().unwrap();
        refuses(&file, StoreErrorKind::Corrupt, &["a count that cannot be read"]);
    }
}

#[test]
fn a_file_of_a_newer_version_is_refused() {
    let (_folder, file) = folder();
    filled(&file);
    let connection = Connection::open(&file).unwrap();
    let sql = "insert into refinery_schema_history select version + 900, 'later', applied_on, \
               checksum from refinery_schema_history limit 1";
    connection.execute_batch(sql).unwrap();
    connection.close().unwrap();
    refuses(&file, StoreErrorKind::Corrupt, &["newer tollgate"]);
}

#[test]
fn an_empty_file_is_a_new_store() {
    let (_folder, file) = folder();
    std::fs::write(&file, "").unwrap();
    assert_eq!(open(&file).unwrap().stats().keys, 0);
}

#[test]
fn a_folder_that_does_not_exist_is_named() {
    let (_folder, file) = folder();
    let file = file.with_file_name("nowhere").join("tollgate.db");
    let error = open(&file).expect_err("there is no such folder");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let message = error.to_string();
    assert!(message.contains("check that its folder exists"), "{message}");
    assert!(message.contains(&*file.to_string_lossy()), "{message}");
    assert!(!file.parent().unwrap().exists());
}

#[test]
fn a_folder_is_no_file() {
    let (folder, _) = folder();
    let error = open(folder.path()).expect_err("it is a folder");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("cannot be opened for writing"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_file_in_use_is_refused_until_it_is_closed() {
    let (_folder, file) = folder();
    let first = open(&file).unwrap();
    ask(&first, Intent::Spend, 0);
    for _ in 0..2 {
        let error = open(&file).expect_err("it is in use");
        assert_eq!(error.kind(), StoreErrorKind::Contended);
        assert!(error.to_string().contains("in use by another process"), "{error}");
    }
    ask(&first, Intent::Spend, 0);
    first.close();
    assert_eq!(ask(&open(&file).unwrap(), Intent::Peek, 0), 2);
}
