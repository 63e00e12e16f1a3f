//! The load: wrk, the same for everybody, always to this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

pub(crate) const THREADS: usize = 2;
pub(crate) const CONNECTIONS: usize = 64;

/// What is sent: `KEY` in the body becomes the number of a key, `IP` two octets of it.
pub(crate) struct Load<'a> {
    pub(crate) port: u16,
    pub(crate) path: &'a str,
    pub(crate) body: &'a str,
    pub(crate) keys: usize,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Outcome {
    requests: u64,
    micros: u64,
    pub(crate) p50_micros: f64,
    pub(crate) p99_micros: f64,
    failed: u64,
}

impl Outcome {
    pub(crate) fn requests_per_second(&self) -> f64 {
        self.requests as f64 * 1e6 / self.micros as f64
    }
}

pub(crate) fn run(wrk: &Path, load: &Load<'_>, duration: Duration) -> Result<Outcome> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/wrk.lua");
    let output = Command::new(wrk)
        .arg(format!("-t{THREADS}"))
        .arg(format!("-c{CONNECTIONS}"))
        .arg(format!("-d{}s", duration.as_secs()))
        .arg("-s")
        .arg(script)
        .arg(format!("http://127.0.0.1:{}", load.port))
        .args(["--", load.path, &load.keys.to_string(), load.body])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let result = text.lines().find_map(|line| line.strip_prefix("RESULT "));
    let result = result.with_context(|| {
        format!("wrk said nothing: {text}{}", String::from_utf8_lossy(&output.stderr))
    })?;
    let outcome: Outcome = serde_json::from_str(result)?;
    ensure!(outcome.failed == 0, "{} of {} requests failed", outcome.failed, outcome.requests);
    ensure!(outcome.requests > 0, "no request was answered");
    Ok(outcome)
}
