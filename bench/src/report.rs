//! What one bench has to say: shown while it runs, and kept in `bench/results`.
//!
//! A bench measures; what a value is held against stands in `targets.rs`, and the pages are
//! written from what is kept here by `figures.rs`. A quick run is kept apart, so that trying the
//! bench never replaces a figure that was published.

use std::fs;
use std::path::PathBuf;
use std::time::Instant as Stopwatch;

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Pace, machine, targets};

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) heading: String,
    /// Of the run it is kept from, if that was an earlier one.
    #[serde(default)]
    pub(crate) kept_from: Option<String>,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Self { heading: heading.to_owned(), kept_from: None, columns, rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.cells(cells.into());
    }

    pub(crate) fn cells(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }

    /// Without its heading.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = vec!["---".to_owned(); self.columns.len()];
        let rows = self.rows.iter().map(|row| line(row)).collect::<String>();
        line(&self.columns) + &line(&rule) + &rows
    }
}

/// A figure that a target asks for.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) value: f64,
    /// What it was made of, for people.
    #[serde(default)]
    pub(crate) detail: String,
}

/// As it is kept, in `results/NAME.json` or `results/quick/NAME.json`.
#[derive(Serialize, Deserialize)]
pub(crate) struct Document {
    pub(crate) title: String,
    pub(crate) date: String,
    /// Why there are no figures.
    #[serde(default)]
    pub(crate) failed: Option<String>,
    pub(crate) quick: bool,
    pub(crate) seconds: u64,
    pub(crate) machine: Value,
    pub(crate) versions: Value,
    pub(crate) settings: String,
    pub(crate) notes: Vec<String>,
    pub(crate) tables: Vec<Table>,
    /// By the target's id.
    pub(crate) measured: std::collections::BTreeMap<String, Measured>,
    /// Every round, for programs.
    pub(crate) figures: Value,
}

impl Document {
    /// One without figures, of now.
    pub(crate) fn blank(title: &str, pace: Pace) -> Result<Self> {
        Ok(Self {
            title: title.to_owned(),
            date: now()?,
            failed: None,
            quick: pace.quick,
            seconds: 0,
            machine: machine::machine(),
            versions: machine::versions(),
            settings: format!("{pace:?}"),
            notes: Vec::new(),
            tables: Vec::new(),
            measured: std::collections::BTreeMap::new(),
            figures: Value::Object(Map::new()),
        })
    }

    /// The published run if there is one, or else the quick one; nothing if there is neither.
    pub(crate) fn read(name: &str) -> Result<Option<Self>> {
        for quick in [false, true] {
            if let Some(document) = Self::read_of(name, quick)? {
                return Ok(Some(document));
            }
        }
        Ok(None)
    }

    pub(crate) fn read_of(name: &str, quick: bool) -> Result<Option<Self>> {
        let path = path_of(name, quick)?;
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path)?;
        let document = serde_json::from_str(&text);
        document.map(Some).with_context(|| {
            format!("{} is of another version: run `bench -- {name}` again", path.display())
        })
    }

    pub(crate) fn write(&self, name: &str) -> Result<()> {
        let path = path_of(name, self.quick)?;
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(&path, text).with_context(|| format!("{} was not written", path.display()))?;
        eprintln!("wrote {}", path.display());
        Ok(())
    }
}

/// Collects what a bench says.
pub(crate) struct Report {
    name: &'static str,
    begun: Stopwatch,
    document: Document,
}

impl Report {
    /// Prints the title and on what it is measured.
    pub(crate) fn new(name: &'static str, title: &str, pace: Pace) -> Result<Self> {
        let document = Document::blank(title, pace)?;
        println!("\n## {title}\n\n{}\n", machine_line(&document.machine));
        Ok(Self { name, begun: Stopwatch::now(), document })
    }

    pub(crate) fn note(&mut self, text: String) {
        println!("{text}");
        self.document.notes.push(text);
    }

    pub(crate) fn table(&mut self, table: Table) {
        println!("\n### {}\n\n{}", table.heading, table.markdown());
        self.document.tables.push(table);
    }

    /// What was measured for the target of this id, and what it was made of.
    pub(crate) fn measured(&mut self, id: &str, value: f64, detail: String) {
        assert!(targets::find(id).is_some(), "targets.rs knows no {id}");
        // What has no rounds is not measured; and JSON has no word for such a number.
        if value.is_finite() {
            self.document.measured.insert(id.to_owned(), Measured { value, detail });
        }
    }

    /// Keeps what an earlier run found out about parts that this one left out.
    pub(crate) fn keep_from_before(
        &mut self,
        is_kept_table: impl Fn(&str) -> bool,
        is_kept_target: impl Fn(&str) -> bool,
    ) -> Result<()> {
        if let Some(before) = Document::read_of(self.name, self.document.quick)? {
            let run = match before.versions["commit"].as_str() {
                Some(commit) => format!("{}, commit {commit}", before.date),
                None => before.date,
            };
            let tables = before.tables.into_iter().filter(|table| is_kept_table(&table.heading));
            self.document.tables.extend(tables.map(|mut table| {
                table.kept_from.get_or_insert(run.clone());
                table
            }));
            let measured = before.measured.into_iter().filter(|(id, _)| is_kept_target(id));
            self.document.measured.extend(measured);
            self.document.figures = before.figures;
        }
        Ok(())
    }

    /// Prints the verdicts, and writes it all down with the raw `figures`, beside those kept from before.
    pub(crate) fn finish(mut self, figures: Value) -> Result<()> {
        println!("\n### Against the targets\n\n{}", targets::table(&self.document.measured));
        self.document.seconds = self.begun.elapsed().as_secs();
        match (&mut self.document.figures, figures) {
            (Value::Object(kept), Value::Object(figures)) => kept.extend(figures),
            (kept, figures) => *kept = figures,
        }
        self.document.write(self.name)
    }
}

pub(crate) fn machine_line(machine: &Value) -> String {
    let text = |name: &str| machine[name].as_str().unwrap_or_default();
    format!(
        "{} × {}, memory {}, Linux {}; load average {}",
        machine["cores"],
        text("cpu"),
        text("memory"),
        text("kernel"),
        text("load_average"),
    )
}

fn now() -> Result<String> {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH)?;
    let instant = tollgate::Instant::from_micros(i64::try_from(now.as_micros())?);
    Ok(instant.to_string().chars().take("2026-11-16T03:10".len()).collect::<String>() + "Z")
}

fn path_of(name: &str, quick: bool) -> Result<PathBuf> {
    let folder = folder(if quick { "results/quick" } else { "results" })?;
    Ok(folder.join(format!("{name}.json")))
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

pub(crate) fn progress(steps: usize, prefix: &str) -> ProgressBar {
    let template = "{prefix:>16} {wide_bar} {pos}/{len} {msg} ({eta} left)";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps as u64).with_style(style).with_prefix(prefix.to_owned())
}
