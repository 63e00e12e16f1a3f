//! Slots in one burst that gets longer and longer: what the last thousand cost.

use anyhow::Result;
use serde_json::{Value, json};
use tollgate::Instant;

use super::steps::{Cost, Point, Series};
use super::{add, checks, title};
use crate::Pace;
use crate::machine::Usage;
use crate::report::Report;
use crate::slots::rig::{Rig, Scheduler};
use crate::statistics::{median, number};

const SCHEDULE: &str = "growth";
const BATCH: usize = 1000;
/// The cost is the median of so many batches at the end: one flush that takes long is no trend.
const LAST_BATCHES: usize = 10;

pub(super) fn run(report: &mut Report, pace: Pace) -> Result<Value> {
    let mut figures = Vec::new();
    for (name, id) in [("PostgreSQL", "postgres"), ("SQLite", "sqlite")] {
        // A rig for each, so that the memory is that of one store.
        let rig = Rig::start()?;
        eprintln!("growth of slots, {name}");
        let (scheduler, stored): (_, fn(&Rig) -> Result<u64>) = match id {
            "postgres" => (&rig.on_postgres, Rig::database_bytes),
            _ => (&rig.embedded, |rig| Ok(checks::file_bytes(&rig.folder().join("slots.db")))),
        };
        let points = burst(&rig, scheduler, pace.growth.slots, stored)?;
        let id = Some(format!("growth.slots.{id}"));
        let what = "a slot of the last batches of 1,000";
        let costs = vec![Cost { what, unit: "µs", id, memory: None }];
        let heading = format!("{}, {name}, all for one instant", title("slots"));
        let series = Series { heading, of: "slots given", costs, points };
        add(report, &series);
        figures.push(series.json());
    }
    Ok(json!(figures))
}

fn burst(
    rig: &Rig,
    scheduler: &Scheduler,
    sizes: &[usize],
    stored: impl Fn(&Rig) -> Result<u64>,
) -> Result<Vec<Point>> {
    rig.runtime.block_on(scheduler.schedule(SCHEDULE))?;
    let at = Instant::from_micros(1_900_000_000_000_000);
    let begun = std::time::Instant::now();
    let mut took = Vec::new();
    let mut points = Vec::new();
    for &size in sizes {
        while took.len() * BATCH < size {
            let batch = rig.runtime.block_on(scheduler.ask(SCHEDULE, at, BATCH))?;
            took.push(batch.as_nanos() as f64 / 1e3 / BATCH as f64);
        }
        let seconds = begun.elapsed().as_secs_f64();
        eprintln!("  {} slots after {seconds:.0} s", number(size as f64));
        points.push(Point {
            size,
            costs: vec![median(&took[took.len().saturating_sub(LAST_BATCHES)..])],
            resident_bytes: Usage::of("self")?.resident_bytes,
            stored_bytes: Some(stored(rig)?),
        });
    }
    Ok(points)
}
