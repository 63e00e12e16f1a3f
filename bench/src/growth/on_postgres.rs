//! The same on PostgreSQL, by 64 callers, with durable settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use testkit::servers::{Postgres, Settings};
use tokio::runtime::Runtime;
use tollgate::{Policy, Tollgate};

use super::checks::{Key, LASTING};
use super::steps::{Cost, Point, Series};
use super::title;
use crate::Pace;
use crate::disorder::Disorder;
use crate::machine::Usage;
use crate::outcome::Outcome;
use crate::statistics::{median, number};

const POLICY: &str = "growth";
const LINES: [&str; 4] = [
    "shared_buffers = '128MB'",
    "max_connections = 100",
    "synchronous_commit = on",
    "max_wal_size = '4GB'",
];
const CALLERS: usize = 64;
/// Who fill the table, up to this many keys; the rest are copies of a row.
const FILLERS: usize = 512;
const MOST_ASKED_FOR: usize = 100_000;
const ROUNDS: usize = 3;

pub(super) fn run(sizes: &[usize], pace: Pace) -> Result<Series> {
    let lines = LINES.map(str::to_owned).to_vec();
    let postgres = Postgres::start_with(Settings { fsync: true, lines, ..Settings::default() });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let gate = runtime.block_on(async {
        let gate = Tollgate::open(&format!("{}?deadline=10s", postgres.url())).await?;
        gate.apply(&Policy::from_toml(POLICY, LASTING)?, "bench").await?;
        anyhow::Ok(Arc::new(gate))
    })?;
    let mut points = Vec::new();
    let mut made = 0;
    for &size in sizes {
        let begun = Instant::now();
        fill(&postgres, &runtime, &gate, made, size)?;
        made = size;
        eprintln!("  {} keys after {:.0} s", number(size as f64), begun.elapsed().as_secs_f64());
        // What filling left to be written is not the checks' to pay.
        postgres.psql("vacuum analyze tollgate.counter");
        postgres.psql("checkpoint");
        let (mut hot, mut random, mut p50) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let of_hot = calls(&runtime, &gate, 1, pace)?;
            let of_random = calls(&runtime, &gate, size, pace)?;
            // The first makes connections and plans.
            if round > 0 {
                hot.push(1e6 / of_hot.requests_per_second());
                random.push(1e6 / of_random.requests_per_second());
                p50.push(of_random.p50_micros);
            }
        }
        let rows: usize = postgres.psql("select count(*) from tollgate.counter").parse()?;
        ensure!(rows == size, "{rows} keys are stored, not {size}");
        let bytes = postgres.psql("select pg_total_relation_size('tollgate.counter')").parse()?;
        points.push(Point {
            size,
            costs: vec![median(&hot), median(&random), median(&p50)],
            resident_bytes: Usage::of("self")?.resident_bytes,
            stored_bytes: Some(bytes),
        });
    }
    gate.close();
    let cost = |what, id: Option<&str>| Cost {
        what,
        unit: "µs",
        id: id.map(|id| format!("growth.checks.postgres.{id}")),
        memory: None,
    };
    let costs = vec![
        cost("hot key", Some("hot")),
        cost("random keys", Some("random")),
        cost("its p50", None),
    ];
    let heading = format!("{}, PostgreSQL, {CALLERS} callers", title("checks"));
    Ok(Series { heading, of: "keys", costs, points })
}

/// Through the front door as far as that is quick.
fn fill(
    postgres: &Postgres,
    runtime: &Runtime,
    gate: &Arc<Tollgate>,
    from: usize,
    to: usize,
) -> Result<()> {
    let asked_for = to.min(MOST_ASKED_FOR);
    let next = Arc::new(AtomicUsize::new(from));
    let fillers: Vec<_> = (0..FILLERS)
        .map(|_| {
            let (gate, next) = (gate.clone(), next.clone());
            runtime.spawn(async move {
                let mut key = Key::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= asked_for {
                        return anyhow::Ok(());
                    }
                    gate.check(POLICY, &[("user", key.of(number))], 1).await?;
                }
            })
        })
        .collect();
    for filler in fillers {
        runtime.block_on(filler)??;
    }
    if to > asked_for {
        // A key is its limit's fingerprint of eight bytes, then the user; the row of user 0 is
        // copied. That they are found again is seen by the number of rows afterwards.
        let first = from.max(asked_for);
        postgres.psql(&format!(
            "insert into tollgate.counter (key, state, expires_at) \
             select substring(one.key for 8) || convert_to('user-' || lpad(n::text, 8, '0'), 'UTF8'), \
                    one.state, one.expires_at \
             from generate_series({first}, {last}) n, \
                  (select * from tollgate.counter \
                   where substring(key from 9) = convert_to('user-00000000', 'UTF8')) one",
            last = to - 1
        ));
    }
    Ok(())
}

/// One slice of random checks over so many keys.
fn calls(runtime: &Runtime, gate: &Arc<Tollgate>, keys: usize, pace: Pace) -> Result<Outcome> {
    let started = Instant::now();
    let ends = started + pace.postgres_slice;
    let callers: Vec<_> = (0..CALLERS)
        .map(|number| {
            let gate = gate.clone();
            runtime.spawn(async move {
                let mut key = Key::new();
                let mut random = Disorder::number(number);
                let mut latencies = Vec::new();
                loop {
                    let user = key.of(random.below(keys));
                    let asked = Instant::now();
                    if asked >= ends {
                        return anyhow::Ok(latencies);
                    }
                    let answer = gate.check(POLICY, &[("user", user)], 1).await?;
                    latencies.push(asked.elapsed());
                    ensure!(answer.allowed(), "nobody is refused here");
                }
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for caller in callers {
        latencies.append(&mut runtime.block_on(caller)??);
    }
    Outcome::of(latencies, started.elapsed())
}
