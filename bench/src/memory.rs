//! Bytes per key, in a process of its own for each store: before, full, and after all expired.

use std::num::NonZeroU32;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tollgate::{Clock, Instant, Policy, Tollgate};

use crate::Pace;
use crate::contenders::{BUCKET, FIXED, SLIDING};
use crate::machine::Usage;
use crate::report::{Report, Table, progress};
use crate::statistics::{mib, number};

const STORES: [&str; 4] = ["bucket", "fixed", "sliding", "governor"];
const HOUR_MICROS: i64 = 3_600_000_000;

/// What a child process says of itself.
#[derive(Serialize, Deserialize)]
struct Reading {
    empty_bytes: u64,
    full_bytes: u64,
    expired_bytes: u64,
    keys: usize,
    keys_expired: usize,
}

pub(crate) fn run(pace: Pace) -> Result<()> {
    let keys = pace.keys_in_memory;
    let mut report = Report::new("memory", "Memory", pace)?;
    report.note(format!(
        "Resident memory of a process with {} keys like `user-00012345`, one limit by user, \
         spent from once each.",
        number(keys as f64)
    ));
    let columns = ["store", "bytes per key", "resident, full", "after all expired and were swept"];
    let mut table = Table::new("Resident memory", &columns);
    let mut readings = Vec::new();
    let bar = progress(STORES.len(), "memory");
    for store in STORES {
        bar.set_message(store);
        let reading = measure(store, keys)?;
        let bytes_per_key = (reading.full_bytes - reading.empty_bytes) as f64 / keys as f64;
        table.row([
            if store == "governor" { "governor keyed".into() } else { format!("tollgate {store}") },
            number(bytes_per_key),
            mib(reading.full_bytes),
            format!("{} ({} keys)", mib(reading.expired_bytes), reading.keys_expired),
        ]);
        if store == "bucket" {
            report.measured("memory.bytes_per_key", bytes_per_key, String::new());
        }
        readings
            .push(json!({ "store": store, "bytes_per_key": bytes_per_key, "reading": reading }));
        bar.inc(1);
    }
    bar.finish_and_clear();
    report.table(table);
    report.finish(json!({ "stores": readings }))
}

fn measure(store: &str, keys: usize) -> Result<Reading> {
    let output = Command::new(std::env::current_exe()?)
        .args(["fill-memory", store, &keys.to_string()])
        .output()?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "filling {store} failed: {complaint}");
    serde_json::from_slice(&output.stdout).context("a child says what it read")
}

/// Moved by hand, so that expiry needs no waiting.
#[derive(Debug, Default)]
struct HandClock(AtomicI64);

impl Clock for HandClock {
    fn now(&self) -> Instant {
        Instant::from_micros(self.0.load(Ordering::Relaxed))
    }
}

pub(crate) fn child(store: &str, keys: usize) -> Result<()> {
    let reading = match store {
        "bucket" => fill_ours(BUCKET, keys)?,
        "fixed" => fill_ours(FIXED, keys)?,
        "sliding" => fill_ours(SLIDING, keys)?,
        "governor" => fill_governor(keys)?,
        _ => bail!("{store:?} is not one of {STORES:?}"),
    };
    println!("{}", serde_json::to_string(&reading)?);
    Ok(())
}

fn fill_ours(policy: &str, keys: usize) -> Result<Reading> {
    let clock = Arc::new(HandClock(AtomicI64::new(HOUR_MICROS)));
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let gate = runtime.block_on(Tollgate::open_with_clock("memory:", clock.clone()))?;
    let limiter = gate.limiter(Policy::from_toml("bench", policy)?);
    limiter.check_blocking(&[("user", "warm-up")], 1)?;
    let empty_bytes = resident_bytes()?;
    for number in 0..keys {
        limiter.check_blocking(&[("user", &format!("user-{number:08}"))], 1)?;
    }
    let full_bytes = resident_bytes()?;
    let keys = gate.stats().keys;
    clock.0.fetch_add(HOUR_MICROS, Ordering::Relaxed);
    runtime.block_on(gate.sweep())?;
    let keys_expired = gate.stats().keys;
    Ok(Reading { empty_bytes, full_bytes, expired_bytes: resident_bytes()?, keys, keys_expired })
}

fn fill_governor(keys: usize) -> Result<Reading> {
    let quota = Quota::per_minute(NonZeroU32::MAX);
    let clock = FakeRelativeClock::default();
    let limiter = RateLimiter::dashmap_with_clock(quota, clock.clone());
    let _ = limiter.check_key(&"warm-up".to_owned());
    let empty_bytes = resident_bytes()?;
    for number in 0..keys {
        let _ = limiter.check_key(&format!("user-{number:08}"));
    }
    let full_bytes = resident_bytes()?;
    let keys = limiter.len();
    clock.advance(std::time::Duration::from_secs(3600));
    limiter.retain_recent();
    limiter.shrink_to_fit();
    let keys_expired = limiter.len();
    Ok(Reading { empty_bytes, full_bytes, expired_bytes: resident_bytes()?, keys, keys_expired })
}

fn resident_bytes() -> Result<u64> {
    Ok(Usage::of("self")?.resident_bytes)
}
