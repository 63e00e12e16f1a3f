//! Markdown for people, JSON for programs, and on what machine it was measured.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use crate::Pace;

pub(crate) struct Table {
    heading: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Self { heading: heading.to_owned(), columns, rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.columns.len(), "a row has a cell for each column");
        self.rows.push(cells.into());
    }

    pub(crate) fn print(&self) {
        let mut text = format!("\n### {}\n\n", self.heading);
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        text += &line(&self.columns);
        text += &line(&vec!["---".to_owned(); self.columns.len()]);
        for row in &self.rows {
            text += &line(row);
        }
        println!("{text}");
    }
}

/// A figure beside what the issue asks of it.
pub(crate) struct Target<'a> {
    pub(crate) what: &'a str,
    pub(crate) measured: f64,
    pub(crate) unit: &'a str,
    pub(crate) bound: Bound,
    pub(crate) must: Option<f64>,
    pub(crate) aim: Option<f64>,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    AtMost,
    AtLeast,
}

/// Collects targets into a table and into JSON.
pub(crate) struct Targets {
    table: Table,
    json: Vec<Value>,
}

impl Targets {
    pub(crate) fn new() -> Self {
        let columns = ["figure", "measured", "must be", "aim", "verdict"];
        Self { table: Table::new("Against the targets", &columns), json: Vec::new() }
    }

    pub(crate) fn add(&mut self, target: &Target<'_>) {
        let sign = if target.bound == Bound::AtMost { "≤" } else { "≥" };
        let holds = |wanted: f64| match target.bound {
            Bound::AtMost => target.measured <= wanted,
            Bound::AtLeast => target.measured >= wanted,
        };
        let verdict = match target.aim {
            _ if !target.must.is_none_or(holds) => "**missed**",
            Some(aim) if holds(aim) => "reached the aim",
            Some(_) if target.must.is_none() => "short of the aim",
            Some(_) => "met, short of the aim",
            None => "met",
        };
        let shown = |value: f64| format!("{}{}", number(value), target.unit);
        let wanted = |value: Option<f64>| {
            value.map_or("–".into(), |value| format!("{sign} {}", shown(value)))
        };
        self.json.push(json!({
            "figure": target.what, "measured": target.measured, "unit": target.unit.trim(),
            "sign": sign, "must": target.must, "aim": target.aim, "verdict": verdict.trim_matches('*'),
        }));
        self.table.row([
            target.what.to_owned(),
            shown(target.measured),
            wanted(target.must),
            wanted(target.aim),
            verdict.to_owned(),
        ]);
    }

    pub(crate) fn print(&self) {
        self.table.print();
    }

    pub(crate) fn json(&self) -> Value {
        Value::Array(self.json.clone())
    }
}

/// Three significant digits at least, thousands grouped.
pub(crate) fn number(value: f64) -> String {
    if value.abs() < 10.0 {
        return format!("{value:.2}");
    }
    if value.abs() < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[length / 2],
        length => f64::midpoint(sorted[length / 2 - 1], sorted[length / 2]),
    }
}

/// The median of the rounds' own ratios: what disturbs a round disturbs both sides of it.
pub(crate) fn ratio(numerators: &[f64], denominators: &[f64]) -> f64 {
    let ratios: Vec<f64> = numerators.iter().zip(denominators).map(|(a, b)| a / b).collect();
    median(&ratios)
}

/// Writes `bench/results/NAME.json`: the figures, with the machine and the settings.
pub(crate) fn write(name: &str, pace: Pace, figures: Value) -> Result<()> {
    let mut document = Map::new();
    document.insert("machine".into(), machine());
    document.insert("versions".into(), versions());
    document.insert("settings".into(), Value::String(format!("{pace:?}")));
    document.insert("figures".into(), figures);
    let path = folder("results")?.join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(&Value::Object(document))? + "\n";
    fs::write(&path, text).with_context(|| format!("{} was not written", path.display()))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

/// A folder of this package, made if it is not there.
pub(crate) fn folder(name: &str) -> Result<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::create_dir_all(&path).with_context(|| format!("{} was not made", path.display()))?;
    Ok(path)
}

pub(crate) fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn machine() -> Value {
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
        "load_average_at_end": first("/proc/loadavg", ""),
    })
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

fn versions() -> Value {
    let lock = fs::read_to_string(workspace().join("Cargo.lock")).unwrap_or_default();
    let mut versions = Map::new();
    for name in ["tollgate", "governor", "dashmap", "limitador", "axum", "hyper", "tokio"] {
        let found = lock
            .split("[[package]]")
            .filter(|package| package.contains(&format!("\nname = \"{name}\"\n")))
            .find_map(|package| package.split("\nversion = \"").nth(1)?.split('"').next());
        versions.insert(name.to_owned(), json!(found));
    }
    versions.insert("rustc".into(), json!(first_line(Command::new("rustc").arg("--version"))));
    versions.insert("wrk".into(), json!(first_line(Command::new("wrk").arg("--version"))));
    versions.insert("throttlecrab-server".into(), json!(crate::peers::THROTTLECRAB_VERSION));
    versions.insert("rate-limiter-flexible".into(), json!(crate::peers::FLEXIBLE_VERSION));
    Value::Object(versions)
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(str::to_owned)
}

/// Prints a title and on what it was measured.
pub(crate) fn print_title(title: &str) {
    let machine = machine();
    let mut text = format!("\n## {title}\n\n");
    let _ = write!(
        text,
        "{} × {}, Linux {}, load average {} at start. ",
        machine["cores"],
        machine["cpu"].as_str().unwrap_or_default(),
        machine["kernel"].as_str().unwrap_or_default(),
        machine["load_average_at_end"].as_str().unwrap_or_default(),
    );
    println!("{text}");
}

pub(crate) fn progress(steps: usize, prefix: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>16} {wide_bar} {pos}/{len} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps as u64).with_style(style).with_prefix(prefix.to_owned())
}
