//! On what a figure was measured: the machine, the versions of everybody, and how busy it was.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::{peers, report};

/// The crates whose versions matter to a figure.
const CRATES: [&str; 8] =
    ["tollgate", "governor", "dashmap", "limitador", "axum", "hyper", "tokio", "rusqlite"];

pub(crate) fn machine() -> Value {
    let first = |path: &str, start: &str| -> String {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_default();
        line.split_once(':').map_or(line, |(_, value)| value).trim().to_owned()
    };
    json!({
        "cpu": first("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": first("/proc/meminfo", "MemTotal"),
        "kernel": first("/proc/sys/kernel/osrelease", ""),
        "load_average": first("/proc/loadavg", ""),
    })
}

pub(crate) fn versions() -> Value {
    let lock = fs::read_to_string(report::workspace().join("Cargo.lock")).unwrap_or_default();
    let mut versions = Map::new();
    for name in CRATES {
        let found = lock
            .split("[[package]]")
            .filter(|package| package.contains(&format!("\nname = \"{name}\"\n")))
            .find_map(|package| package.split("\nversion = \"").nth(1)?.split('"').next());
        versions.insert(name.to_owned(), json!(found));
    }
    for (name, program, argument) in [
        ("rustc", "rustc", "--version"),
        ("wrk", "wrk", "--version"),
        ("PostgreSQL", "pgbench", "--version"),
        ("Redis", "redis-server", "--version"),
        ("node", "node", "--version"),
    ] {
        // A peer that is not installed is not measured either, and its bench says so.
        versions.insert(name.to_owned(), json!(version_of(program, argument)));
    }
    versions.insert("commit".into(), json!(commit()));
    versions.insert("SQLite".into(), json!(rusqlite::version()));
    versions.insert("throttlecrab-server".into(), json!(peers::THROTTLECRAB_VERSION));
    versions.insert("rate-limiter-flexible".into(), json!(peers::FLEXIBLE_VERSION));
    Value::Object(versions)
}

fn version_of(program: &str, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    // Programs say more than that, each in its own way.
    let is_version = |word: &&str| word.contains(|letter: char| letter.is_ascii_digit());
    let version = text.lines().next()?.split_whitespace().find(is_version)?;
    Some(version.trim_start_matches(['v', '=']).to_owned())
}

/// What was measured, and whether it is as it was committed.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").current_dir(report::workspace()).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    // Figures are written while benches run: they do not count.
    let changes = git(&["status", "--porcelain", "--", "crates", "bench/src", "Cargo.lock"])?;
    Some(if changes.is_empty() { commit } else { format!("{commit} with changes") })
}

/// How much of all cores was busy for a while, with whatever runs here.
pub(crate) fn busy_percent(watched: Duration) -> Result<f64> {
    // The first line of /proc/stat: jiffies by kind, the fourth and fifth of them idle.
    let read = || -> Result<(u64, u64)> {
        let text = fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().unwrap_or_default();
        let jiffies: Vec<u64> =
            line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        Ok((jiffies.iter().sum(), jiffies.iter().skip(3).take(2).sum()))
    };
    let (all, idle) = read()?;
    std::thread::sleep(watched);
    let (all_later, idle_later) = read()?;
    Ok(100.0 * (1.0 - (idle_later - idle) as f64 / (all_later - all).max(1) as f64))
}

/// What a process has used so far.
pub(crate) struct Usage {
    /// Hundredths of a second on a core.
    pub(crate) ticks: u64,
    pub(crate) resident_bytes: u64,
}

/// Of [`Usage::ticks`].
pub(crate) const TICKS_PER_SECOND: f64 = 100.0;

impl Usage {
    /// `process` as under `/proc`: its number, or `self`.
    pub(crate) fn of(process: &str) -> Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
        // A process may have a name with spaces, in brackets.
        let rest = stat.rsplit_once(')').map_or(stat.as_str(), |(_, rest)| rest);
        let field =
            |number: usize| rest.split_whitespace().nth(number).unwrap_or("0").parse::<u64>();
        // Times in user and in system mode, the 14th and 15th; the 24th is resident pages.
        let (ticks, pages) = (field(11)? + field(12)?, field(21)?);
        Ok(Self { ticks, resident_bytes: pages * 4096 })
    }
}
