//! A folder with a store's file in it, and the clock that goes with it.

#![allow(dead_code, reason = "every test binary uses its own part of this")]

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use testkit::{ManualClock, Stage};
use tollgate::{Error, Tollgate};

pub(crate) struct Home {
    folder: TempDir,
    pub(crate) clock: ManualClock,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), clock: ManualClock::start() }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("tollgate.db")
    }

    pub(crate) async fn try_open(&self) -> Result<Stage, Error> {
        let url = format!("sqlite:{}", self.file().display());
        let gate = Tollgate::open_with_clock(&url, self.clock.shared()).await?;
        Ok(Stage::from((gate, self.clock.clone())))
    }

    pub(crate) async fn open(&self) -> Stage {
        self.try_open().await.unwrap()
    }

    /// A copy of what is on disk now, as a crash would leave it. Another process reads the file:
    /// closing it in this one would give up the store's lock.
    pub(crate) fn copy(&self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let from = format!("{}/.", self.folder.path().display());
        let copied = Command::new("cp").arg("-r").arg(from).arg(folder.path()).status().unwrap();
        assert!(copied.success());
        Self { folder, clock: self.clock.clone() }
    }

    /// Every byte on disk, the log included.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let copy = self.copy();
        let mut bytes = Vec::new();
        for entry in std::fs::read_dir(copy.folder.path()).unwrap() {
            bytes.extend(std::fs::read(entry.unwrap().path()).unwrap());
        }
        bytes
    }
}

/// How many rows a table of a closed file has.
pub(crate) fn rows(file: &Path, table: &str) -> u64 {
    let connection = rusqlite::Connection::open(file).unwrap();
    let count = format!("select count(*) from {table}");
    connection.query_row(&count, [], |row| row.get::<_, i64>(0)).unwrap().try_into().unwrap()
}
