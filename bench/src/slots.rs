//! Slots per second, beside the usual windows in plpgsql and beside a bare durable insert.
//!
//! All events of a burst ask for one instant, at most 100 per PT4S: so every one of them has to
//! look behind all the windows that are full already.

mod burst;
mod lone;
pub(crate) mod rig;

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::Pace;
use crate::machine;
use crate::report::{Report, Table};
use crate::statistics::{median, number};
use rig::Rig;

const WATCHED: Duration = Duration::from_secs(2);

/// A figure of one store, each value from one round.
struct Figure {
    what: String,
    values: Vec<f64>,
    unit: &'static str,
    /// Of the target it is held against.
    id: Option<String>,
}

impl Figure {
    fn new(what: impl Into<String>, values: Vec<f64>, unit: &'static str) -> Self {
        Self { what: what.into(), values, unit, id: None }
    }

    fn target(self, id: String) -> Self {
        Self { id: Some(id), ..self }
    }

    fn json(&self) -> Value {
        json!({ "what": self.what, "values": self.values, "unit": self.unit })
    }
}

pub(crate) fn run(pace: Pace) -> Result<()> {
    let mut report = Report::new("slots", "Slots", pace)?;
    let before = machine::busy_percent(WATCHED)?;
    let rig = Rig::start()?;
    report.note(format!(
        "PostgreSQL {}, fsync and synchronous_commit on; SQLite with `synchronous = full`. Medians of \
         {} interleaved rounds. What else ran took {} % of the machine before the start.",
        rig.version(),
        pace.rounds,
        number(before),
    ));
    let mut figures = burst::callers(&rig, pace)?;
    figures.extend(burst::batches(&rig, pace)?);
    figures.extend(lone::calls(&rig, pace)?);
    let mut table = Table::new("Slots", &["what", "median", "lowest", "highest"]);
    for figure in &figures {
        let lowest = figure.values.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = figure.values.iter().copied().fold(0.0, f64::max);
        let show = |value| format!("{}{}", number(value), figure.unit);
        table.row([figure.what.clone(), show(median(&figure.values)), show(lowest), show(highest)]);
        if let Some(id) = &figure.id {
            report.measured(id, median(&figure.values), String::new());
        }
    }
    report.table(table);
    let figures: Vec<Value> = figures.iter().map(Figure::json).collect();
    let version = rig.version();
    report.finish(json!({ "postgres": version, "busy_percent_before": before, "figures": figures }))
}
