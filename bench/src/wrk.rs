//! The load: wrk, the same for everybody, always to this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::outcome::Outcome;

pub(crate) const THREADS: usize = 2;
pub(crate) const CONNECTIONS: usize = 64;

/// What is sent: `KEY` in the body becomes the number of a key, `IP` two octets of it.
pub(crate) struct Load<'a> {
    pub(crate) port: u16,
    pub(crate) path: &'a str,
    /// Posted; if there is none, the path is got with `headers`, one to a line.
    pub(crate) body: &'a str,
    pub(crate) headers: &'a str,
    pub(crate) keys: usize,
    pub(crate) connections: usize,
    pub(crate) expected: Expected,
}

/// What every answer must be.
#[derive(Clone, Copy)]
pub(crate) enum Expected {
    Allowed,
    Refused,
}

pub(crate) fn run(wrk: &Path, load: &Load<'_>, duration: Duration) -> Result<Outcome> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/wrk.lua");
    let output = Command::new(wrk)
        .arg(format!("-t{}", THREADS.min(load.connections)))
        .arg(format!("-c{}", load.connections))
        .arg(format!("-d{}s", duration.as_secs()))
        .arg("-s")
        .arg(script)
        .arg(format!("http://127.0.0.1:{}", load.port))
        .args(["--", load.path, &load.keys.to_string(), load.body, load.headers])
        .output()?;
    let outcome = Outcome::read(&output)?;
    let expected = match load.expected {
        Expected::Allowed => 0,
        Expected::Refused => outcome.requests,
    };
    let Outcome { requests, refused, .. } = outcome;
    ensure!(refused == expected, "{refused} of {requests} requests refused, not {expected}");
    Ok(outcome)
}
