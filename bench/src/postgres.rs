//! Decisions per second on PostgreSQL, beside the SQL that people usually write for it.
//!
//! One private server with durable settings, the same for everybody. Callers' numbers and
//! contenders take turns within each round, because what a disk gives changes by the minute.

mod inprocess;
mod loads;
pub(crate) mod pgbench;
mod rig;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::Pace;
use crate::outcome::Outcome;
use crate::report::{self, Bound, Table, Target, Targets, median, number, progress, ratio};
use loads::{LOADS, Load};
use rig::{Contender, HTTP, IN_PROCESS, Rig};

const CALLERS: [usize; 4] = [1, 8, 64, 512];
/// Nobody is to be refused for being slow here: that would look fast.
const PARAMETERS: &str = "deadline=10s";
const WATCHED: Duration = Duration::from_secs(2);

/// By callers and contender.
type Rounds = BTreeMap<(usize, &'static str), Vec<Outcome>>;

struct Cell {
    load: Load,
    contenders: Vec<&'static str>,
    rounds: Rounds,
}

/// `parameters` of our store's URL, to try others than the defaults.
pub(crate) fn run(pace: Pace, parameters: &str) -> Result<()> {
    report::print_title("PostgreSQL");
    let before = report::busy_percent(WATCHED)?;
    let mut rig = Rig::start(&format!("{PARAMETERS}&{parameters}"))?;
    println!(
        "PostgreSQL {}, fsync and synchronous_commit on, 128 MB of buffers, all on the same cores. \
         Medians of {} interleaved rounds of {} s each, after one that is not counted; \
         `pgbench -M prepared -j 2` drives the SQL, `wrk -t2` our server.\n\
         What else ran took {} % of the machine before the start.{}",
        rig.version(),
        pace.rounds,
        pace.postgres_slice.as_secs(),
        number(before),
        if parameters.is_empty() { String::new() } else { format!(" With {parameters}.") },
    );
    let mut cells = Vec::new();
    for load in LOADS {
        let contenders = rig.contenders(load);
        let rounds = measure(&rig, load, &contenders, pace)?;
        let cell = Cell { load, contenders: contenders.iter().map(|it| it.name).collect(), rounds };
        print_cell(&cell);
        cells.push(cell);
    }
    for reason in &rig.missing {
        println!("Not measured: {reason}");
    }
    let (version, missing) = (rig.version(), std::mem::take(&mut rig.missing));
    drop(rig);
    let after = report::busy_percent(WATCHED)?;
    println!("What else ran took {} % of the machine after the end.", number(after));
    let targets = targets(&cells);
    targets.print();
    let figures = json!({
        "postgres": version,
        "parameters": parameters,
        "busy_percent_before_and_after": [before, after],
        "cells": cells.iter().flat_map(Cell::json).collect::<Vec<Value>>(),
        "missing": missing,
        "targets": targets.json(),
    });
    report::write("postgres", pace, figures)
}

fn measure(rig: &Rig, load: Load, contenders: &[Contender], pace: Pace) -> Result<Rounds> {
    let mut rounds = Rounds::new();
    let slices = (pace.rounds + 1) * pace.postgres_callers.len() * contenders.len();
    let bar = progress(slices, load.policy());
    for round in 0..=pace.rounds {
        for &callers in pace.postgres_callers {
            for contender in contenders {
                bar.set_message(format!("{}, {callers} callers", contender.name));
                let outcome = rig.run(contender, load, callers, pace.postgres_slice)?;
                // In the first round tables are filled and plans are made.
                if let Some(outcome) = outcome
                    && round > 0
                {
                    rounds.entry((callers, contender.name)).or_default().push(outcome);
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(rounds)
}

impl Cell {
    fn values(&self, callers: usize, name: &'static str, value: fn(&Outcome) -> f64) -> Vec<f64> {
        self.rounds.get(&(callers, name)).into_iter().flatten().map(value).collect()
    }

    fn rates(&self, callers: usize, name: &'static str) -> Vec<f64> {
        self.values(callers, name, Outcome::requests_per_second)
    }

    fn json(&self) -> Vec<Value> {
        let row = |((callers, name), rounds): (&(usize, &str), &Vec<Outcome>)| {
            let load = self.load.title();
            json!({ "load": load, "callers": callers, "contender": name, "rounds": rounds })
        };
        self.rounds.iter().map(row).collect()
    }
}

fn print_cell(cell: &Cell) {
    let heading = format!(
        "{}: decisions/s (× {}; p50 / p99 ms)",
        capitalised(cell.load.title()),
        cell.load.base()
    );
    let columns = ["contender", "1 caller", "8 callers", "64 callers", "512 callers"];
    let mut table = Table::new(&heading, &columns);
    for name in &cell.contenders {
        let [one, few, many, most] = CALLERS.map(|callers| {
            let rates = cell.rates(callers, name);
            if rates.is_empty() {
                return "–".to_owned();
            }
            let base = ratio(&rates, &cell.rates(callers, cell.load.base()));
            let millis = |micros| number(median(&cell.values(callers, name, micros)) / 1e3);
            let (p50, p99) =
                (millis(|outcome| outcome.p50_micros), millis(|outcome| outcome.p99_micros));
            format!("{} ({} ×; {p50} / {p99})", number(median(&rates)), number(base))
        });
        table.row([(*name).to_owned(), one, few, many, most]);
    }
    table.print();
}

fn capitalised(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}

fn targets(cells: &[Cell]) -> Targets {
    let mut targets = Targets::new();
    for cell in cells {
        let (title, base) = (cell.load.title(), cell.load.base());
        let mut add = |what: &str, measured, bound, must, aim| {
            let what = format!("{title}, {what}");
            targets.add(&Target {
                what: &what,
                measured,
                unit: " ×",
                bound,
                must: Some(must),
                aim,
            });
        };
        let (must, aim) = match cell.load {
            Load::Hot => (20.0, Some(50.0)),
            Load::Many => (2.0, Some(4.0)),
            Load::Tiers => (15.0, Some(40.0)),
            Load::Refusals => (100.0, None),
        };
        for ours in [IN_PROCESS, HTTP] {
            let measured = ratio(&cell.rates(64, ours), &cell.rates(64, base));
            add(&format!("64 callers, {ours} to {base}"), measured, Bound::AtLeast, must, aim);
        }
        if cell.load == Load::Hot {
            let p50 = |callers, name| cell.values(callers, name, |outcome| outcome.p50_micros);
            let p99 = |callers, name| cell.values(callers, name, |outcome| outcome.p99_micros);
            let what = format!("64 callers, our p99 to the p50 of {base}");
            add(&what, ratio(&p99(64, IN_PROCESS), &p50(64, base)), Bound::AtMost, 1.0, None);
            let what = format!("a lone caller, our p50 to that of {base}");
            add(&what, ratio(&p50(1, IN_PROCESS), &p50(1, base)), Bound::AtMost, 1.5, None);
        }
        for (few, many) in [(8, 64), (64, 512)] {
            for ours in [IN_PROCESS, HTTP] {
                if cell.rates(many, ours).is_empty() || cell.rates(few, ours).is_empty() {
                    continue;
                }
                let measured = ratio(&cell.rates(many, ours), &cell.rates(few, ours));
                let what = format!("{ours}, {many} callers to {few}");
                add(&what, measured, Bound::AtLeast, 1.0, None);
            }
        }
    }
    targets
}
