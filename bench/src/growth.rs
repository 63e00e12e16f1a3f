//! What a check, a slot and a message cost as there are more of them, with memory and file size.
//!
//! Nothing here may grow faster than the logarithm of what is kept. Each step from one size to the
//! next is held against that: see `steps.rs`.

mod checks;
mod mail;
mod on_postgres;
mod slots;
mod steps;

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, anyhow, bail};
use serde_json::{Map, Value};

use crate::Pace;
use crate::report::Report;

pub(crate) use checks::child as checks_child;
use steps::Series;

#[derive(Clone, Copy)]
struct Part {
    name: &'static str,
    /// What a full run takes, about, on a quiet machine.
    minutes: f64,
    run: fn(&mut Report, Pace) -> Result<Value>,
}

const PARTS: [Part; 3] = [
    Part { name: "checks", minutes: 5.0, run: checks::run },
    Part { name: "slots", minutes: 5.0, run: slots::run },
    Part { name: "mail", minutes: 3.0, run: mail::run },
];

/// All parts, or the one that is named. What is known of the others is kept.
pub(crate) fn run(pace: Pace, rest: &[&str]) -> Result<()> {
    let (asked, left_out): (Vec<Part>, Vec<Part>) =
        PARTS.into_iter().partition(|part| rest.is_empty() || rest == [part.name]);
    if asked.is_empty() {
        bail!("growth is of checks, slots or mail, not of {}", rest.join(" "));
    }
    let mut report = Report::new("growth", "Growth", pace)?;
    report.note(format!(
        "Costs at each size, and to the size before it; behind that, this ratio over the ratio of \
         the logarithms. O(log n) is 1 there. Up to {} is for what a larger set no longer fits into \
         (caches of the processor, of SQLite, of PostgreSQL); anything linear would be 5 to 60. Random \
         keys in this process are held against a bare hash table of the same keys instead, where that \
         grows by more: it does the same look-up and nothing else, so what it grows by is the \
         processor's caches.",
        steps::ROOM
    ));
    report.keep_from_before(
        |heading| left_out.iter().any(|part| heading.starts_with(&title(part.name))),
        |id| left_out.iter().any(|part| id.starts_with(&format!("growth.{}.", part.name))),
    )?;
    let mut figures = Map::new();
    for (position, part) in asked.iter().enumerate() {
        let minutes: f64 = asked[position..].iter().map(|part| part.minutes).sum();
        let left = if pace.quick { minutes / 8.0 } else { minutes };
        eprintln!("growth [{}/{}] {}: {left:.0} min left", position + 1, asked.len(), part.name);
        // Servers of the testkit panic when they do not start.
        let ran = catch_unwind(AssertUnwindSafe(|| (part.run)(&mut report, pace)));
        match ran.unwrap_or_else(|_| Err(anyhow!("it panicked"))) {
            Ok(figure) => {
                figures.insert(part.name.to_owned(), figure);
            }
            // The others are worth having all the same; its targets show as missing.
            Err(error) => report.note(format!("Not measured: growth of {}: {error:#}", part.name)),
        }
    }
    report.finish(Value::Object(figures))
}

fn title(part: &str) -> String {
    format!("Growth of {part}")
}

/// Shows a series, and holds it against its target.
fn add(report: &mut Report, series: &Series) {
    report.table(series.table());
    for (id, column) in series.targets() {
        if let Some(worst) = series.worst_step(column) {
            report.measured(&id, worst, series.ends(column));
        }
    }
}
