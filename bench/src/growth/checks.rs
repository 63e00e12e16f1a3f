//! Checks over ever more keys: in memory and on a file in a process each, then on PostgreSQL.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate::{Limiter, Policy, Tollgate};

use super::steps::{Cost, Point, Series};
use super::{add, on_postgres, title};
use crate::Pace;
use crate::disorder::Disorder;
use crate::machine::Usage;
use crate::report::Report;
use crate::statistics::{median, number};

/// A window so long that no key expires while this runs, and that nobody is refused in.
pub(super) const LASTING: &str =
    r#"limits = [{ name = "user", max = 1000000000, per = "3650d", by = ["user"] }]"#;
/// How long a slice of the measurement is, and how many there are.
const SLICE: Duration = Duration::from_millis(300);
const SLICES: usize = 5;
const CHECKS_PER_LOOK: usize = 256;
/// The column of the bare hash table.
const BARE: usize = 3;
/// What the file's writer may be behind by, and then some.
const SETTLING: Duration = Duration::from_millis(500);

/// What a child process says at each size.
#[derive(Serialize, Deserialize)]
struct Reading {
    keys: usize,
    hot_ns: f64,
    random_ns: f64,
    random_p50_ns: f64,
    bare_ns: f64,
    resident_bytes: u64,
    file_bytes: Option<u64>,
}

pub(super) fn run(report: &mut Report, pace: Pace) -> Result<Value> {
    let mut figures = Vec::new();
    for (store, name) in [("memory", "`memory:`"), ("sqlite", "`sqlite:`")] {
        eprintln!("growth of checks, {name}: up to {} keys", largest(pace.growth.keys));
        let series = in_process(store, name, pace.growth.keys)?;
        add(report, &series);
        figures.push(series.json());
    }
    let sizes = pace.growth.keys_on_postgres;
    eprintln!("growth of checks, PostgreSQL: up to {} keys", largest(sizes));
    let series = on_postgres::run(sizes, pace)?;
    add(report, &series);
    figures.push(series.json());
    Ok(json!(figures))
}

fn largest(sizes: &[usize]) -> String {
    number(sizes.last().copied().unwrap_or_default() as f64)
}

fn in_process(store: &str, name: &str, sizes: &[usize]) -> Result<Series> {
    let output = Command::new(std::env::current_exe()?)
        .args(["grow-checks", store])
        .args(sizes.iter().map(ToString::to_string))
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the child that fills {store} failed");
    let text = String::from_utf8(output.stdout)?;
    let mut points = Vec::new();
    for line in text.lines() {
        let reading: Reading = serde_json::from_str(line).context("a child says what it read")?;
        points.push(Point {
            size: reading.keys,
            costs: vec![reading.hot_ns, reading.random_ns, reading.random_p50_ns, reading.bare_ns],
            resident_bytes: reading.resident_bytes,
            stored_bytes: reading.file_bytes,
        });
    }
    let cost = |what, id: Option<&str>| Cost {
        what,
        unit: "ns",
        id: id.map(|id| format!("growth.checks.{store}.{id}")),
        memory: None,
    };
    let at_random = |cost: Cost| Cost { memory: Some(BARE), ..cost };
    let costs = vec![
        cost("hot key", Some("hot")),
        at_random(cost("random keys", Some("random"))),
        at_random(cost("its p50", None)),
        cost("random keys of a bare hash table", None),
    ];
    let heading = format!("{}, {name}, one thread, as fast as it can", title("checks"));
    Ok(Series { heading, of: "keys", costs, points })
}

/// Grows one store and says after each size what checks cost: a line of JSON each.
pub(crate) fn child(store: &str, sizes: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = file_of(&folder);
    let url = match store {
        "memory" => "memory:".to_owned(),
        "sqlite" => format!("sqlite:{}", file.display()),
        _ => bail!("{store:?} is neither memory nor sqlite"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let gate = runtime.block_on(Tollgate::open(&url))?;
    let limiter = gate.limiter(Policy::from_toml("growth", LASTING)?);
    let mut made = 0;
    for size in sizes {
        let size: usize = size.parse()?;
        let begun = Instant::now();
        let mut key = Key::new();
        for number in made..size {
            limiter.check_blocking(&[("user", key.of(number))], 1)?;
        }
        eprintln!("  {} keys after {:.0} s", number(size as f64), begun.elapsed().as_secs_f64());
        made = size;
        std::thread::sleep(SETTLING);
        let (hot_ns, _) = measure(&limiter, 1)?;
        let (random_ns, random_p50_ns) = measure(&limiter, size)?;
        let keys = gate.stats().keys;
        ensure!(keys == size, "{keys} keys are known, not {size}");
        let resident_bytes = Usage::of("self")?.resident_bytes;
        let reading = Reading {
            keys,
            hot_ns,
            random_ns,
            random_p50_ns,
            bare_ns: bare(size),
            resident_bytes,
            file_bytes: (store == "sqlite").then(|| file_bytes(&file)),
        };
        println!("{}", serde_json::to_string(&reading)?);
    }
    gate.close();
    Ok(())
}

fn file_of(folder: &TempDir) -> PathBuf {
    folder.path().join("growth.db")
}

/// With what is not yet moved from its log.
pub(super) fn file_bytes(file: &std::path::Path) -> u64 {
    let with_log = [file.to_owned(), PathBuf::from(format!("{}-wal", file.display()))];
    with_log.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|it| it.len()).sum()
}

/// Nanoseconds per check over so many keys at random: the median of the slices, and of single
/// checks among them.
fn measure(limiter: &Limiter, keys: usize) -> Result<(f64, f64)> {
    let mut key = Key::new();
    let mut random = Disorder::number(0);
    let (mut slices, mut singles) = (Vec::new(), Vec::new());
    for _ in 0..SLICES {
        let begun = Instant::now();
        let mut checks = 0_u64;
        while begun.elapsed() < SLICE {
            for number in 0..CHECKS_PER_LOOK {
                let user = key.of(random.below(keys));
                // Two readings of the clock would double the cost of most checks.
                let asked = (number == 0).then(Instant::now);
                let decision = limiter.check_blocking(&[("user", user)], 1)?;
                ensure!(decision.allowed(), "nobody is refused here");
                if let Some(asked) = asked {
                    singles.push(asked.elapsed().as_nanos() as f64);
                }
            }
            checks += CHECKS_PER_LOOK as u64;
        }
        slices.push(begun.elapsed().as_nanos() as f64 / checks as f64);
    }
    Ok((median(&slices), median(&singles)))
}

/// Nanoseconds to find one of so many keys in the usual hash table and to count there: what larger
/// memory costs whoever reads it at random, and nothing else.
fn bare(keys: usize) -> f64 {
    let mut key = Key::new();
    let mut table: HashMap<[u8; 13], [u64; 3], foldhash::fast::RandomState> = HashMap::default();
    for number in 0..keys {
        key.of(number);
        table.insert(key.0, [0; 3]);
    }
    let mut random = Disorder::number(0);
    let slice = |_| {
        let begun = Instant::now();
        let mut found = 0_u64;
        while begun.elapsed() < SLICE {
            for _ in 0..CHECKS_PER_LOOK {
                key.of(random.below(keys));
                if let Some(counts) = table.get_mut(&key.0) {
                    counts[0] += 1;
                    found += 1;
                }
            }
        }
        begun.elapsed().as_nanos() as f64 / found as f64
    };
    median(&(0..SLICES).map(slice).collect::<Vec<_>>())
}

/// Writes `user-00012345` in place: formatting would cost as much as a check.
pub(super) struct Key([u8; 13]);

impl Key {
    pub(super) fn new() -> Self {
        Self(*b"user-00000000")
    }

    pub(super) fn of(&mut self, number: usize) -> &str {
        let mut rest = number;
        for digit in self.0[5..].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        std::str::from_utf8(&self.0).expect("digits are ASCII")
    }
}
