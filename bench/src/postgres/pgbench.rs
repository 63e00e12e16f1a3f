//! Drives SQL with pgbench: prepared statements, one connection for each caller.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::outcome::Outcome;

const THREADS: usize = 2;

/// pgbench's time runs while it connects, which takes about so long for each caller.
const CONNECTING: Duration = Duration::from_millis(5);
/// On a machine that is busy it takes longer: then it is given more time, so often at most.
const MAX_ATTEMPTS: u32 = 4;

pub(crate) fn run(url: &str, script: &str, callers: usize, slice: Duration) -> Result<Outcome> {
    let mut time = slice + CONNECTING * u32::try_from(callers)?;
    for _ in 0..MAX_ATTEMPTS {
        if let Some(outcome) = run_once(url, script, callers, time, slice)? {
            return Ok(outcome);
        }
        time *= 2;
    }
    bail!("{callers} connections take too long")
}

/// Nothing, if connecting left less than half a slice.
fn run_once(
    url: &str,
    script: &str,
    callers: usize,
    time: Duration,
    slice: Duration,
) -> Result<Option<Outcome>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("script.sql");
    fs::write(&file, script)?;
    let logs = folder.path().join("logs");
    fs::create_dir(&logs)?;
    let seconds = time.as_secs_f64().ceil();
    let output = Command::new("pgbench")
        .args(["--no-vacuum", "--protocol=prepared", "--client", &callers.to_string()])
        .args(["--jobs", &THREADS.min(callers).to_string(), "--time", &seconds.to_string()])
        // The usual functions can deadlock; that is part of their time and not of the verdict.
        .args(["--max-tries=100", "--log", "--file"])
        .arg(&file)
        .arg("--log-prefix")
        .arg(logs.join("log"))
        .arg(url)
        .output()
        .context("pgbench is needed: it comes with PostgreSQL")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "pgbench failed: {said}");
    let text = String::from_utf8_lossy(&output.stdout);
    let figure = |name: &str| -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.split(' ').next()?.parse().ok())
    };
    let connecting_millis = figure("initial connection time = ");
    let left_seconds = connecting_millis.map(|millis| seconds - millis / 1e3);
    if left_seconds.is_none_or(|left| left < slice.as_secs_f64() / 2.0) {
        return Ok(None);
    }
    let rate = figure("tps = ").with_context(|| format!("pgbench gave no rate: {text}{said}"))?;
    let latencies = read_logs(&logs)?;
    let elapsed = Duration::try_from_secs_f64(latencies.len() as f64 / rate)?;
    Outcome::of(latencies, elapsed).map(Some)
}

/// Each line: client, transaction, microseconds it took, and more.
fn read_logs(folder: &Path) -> Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    for file in fs::read_dir(folder)? {
        let text = fs::read_to_string(file?.path())?;
        for line in text.lines() {
            let micros = line.split(' ').nth(2).and_then(|micros| micros.parse().ok());
            let micros = micros.with_context(|| format!("not a line of pgbench's log: {line}"))?;
            latencies.push(Duration::from_micros(micros));
        }
    }
    Ok(latencies)
}
