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
use crate::machine;
use crate::outcome::Outcome;
use crate::report::{Report, Table, progress};
use crate::statistics::{median, number, ratio};
use loads::{LOADS, Load};
use rig::{Contender, HTTP, IN_PROCESS, Rig};

const CALLERS: [usize; 4] = [1, 8, 64, 512];
/// Nobody is to be refused for being slow here: that would look fast.
const PARAMETERS: &str = "deadline=10s";
/// How many callers are compared, and warm up.
pub(crate) const COMPARED: usize = 64;
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
    let mut report = Report::new("postgres", "PostgreSQL", pace)?;
    let before = machine::busy_percent(WATCHED)?;
    let mut rig = Rig::start(&format!("{PARAMETERS}&{parameters}"))?;
    report.note(format!(
        "PostgreSQL {}, fsync and synchronous_commit on, 128 MB of buffers, all on the same cores. \
         Medians of {} interleaved rounds of {} s each, after one that is not counted; \
         `pgbench -M prepared -j 2` drives the SQL, `wrk -t2` our server; in process the callers' \
         runtime is adopted (`Tollgate::adopt_runtime`), as the server's threads are. \
         Redis runs a script by EVALSHA, one request at a time on each connection.\n\
         What else ran took {} % of the machine before the start.{}",
        rig.version(),
        pace.postgres_rounds,
        pace.postgres_slice.as_secs(),
        number(before),
        if parameters.is_empty() { String::new() } else { format!(" With {parameters}.") },
    ));
    let mut cells = Vec::new();
    for load in LOADS {
        let contenders = rig.contenders(load);
        let rounds = measure(&rig, load, &contenders, pace)?;
        let cell = Cell { load, contenders: contenders.iter().map(|it| it.name).collect(), rounds };
        report.table(table(&cell));
        cells.push(cell);
    }
    for reason in &rig.missing {
        report.note(format!("Not measured: {reason}"));
    }
    let (version, missing) = (rig.version(), std::mem::take(&mut rig.missing));
    drop(rig);
    let after = machine::busy_percent(WATCHED)?;
    report.note(format!("What else ran took {} % of the machine after the end.", number(after)));
    for cell in &cells {
        hold_against_targets(&mut report, cell);
    }
    let figures = json!({
        "postgres": version,
        "parameters": parameters,
        "busy_percent_before_and_after": [before, after],
        "cells": cells.iter().flat_map(Cell::json).collect::<Vec<Value>>(),
        "missing": missing,
    });
    report.finish(figures)
}

fn measure(rig: &Rig, load: Load, contenders: &[Contender], pace: Pace) -> Result<Rounds> {
    let mut rounds = Rounds::new();
    let slices = (pace.postgres_rounds + 1) * pace.postgres_callers.len() * contenders.len();
    let bar = progress(slices, load.policy());
    for round in 0..=pace.postgres_rounds {
        for &callers in pace.postgres_callers {
            // In the first round, which is not counted, tables are filled.
            if round == 0 && callers != COMPARED {
                bar.inc(contenders.len() as u64);
                continue;
            }
            for contender in contenders {
                bar.set_message(format!("{}, {callers} callers", contender.name));
                let outcome = rig.run(contender, load, callers, pace.postgres_slice)?;
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

fn table(cell: &Cell) -> Table {
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
            format!("{} ({} ×; {p50} / {p99})", number(median(&rates)), number(base.value))
        });
        table.row([(*name).to_owned(), one, few, many, most]);
    }
    table
}

fn capitalised(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}

fn hold_against_targets(report: &mut Report, cell: &Cell) {
    let (load, base) = (cell.load.id(), cell.load.base());
    for (face, ours) in [("inprocess", IN_PROCESS), ("http", HTTP)] {
        let rates = |callers| cell.rates(callers, ours);
        let base_rates = cell.rates(COMPARED, base);
        let measured = ratio(&rates(COMPARED), &base_rates);
        let detail = measured.detail("/s", 1.0);
        report.measured(&format!("postgres.{load}.{face}"), measured.value, detail);
        let steps: Vec<f64> = [(8, COMPARED), (COMPARED, 512)]
            .into_iter()
            .filter(|(few, many)| !rates(*few).is_empty() && !rates(*many).is_empty())
            .map(|(few, many)| ratio(&rates(many), &rates(few)).value)
            .collect();
        if let [to_many, to_most] = steps[..] {
            let detail = format!("{} and {} ×", number(to_many), number(to_most));
            let id = format!("postgres.steady.{load}.{face}");
            report.measured(&id, to_many.min(to_most), detail);
        }
        if cell.load == Load::Hot {
            let p50 = |callers, name| cell.values(callers, name, |outcome| outcome.p50_micros);
            let p99 = |callers, name| cell.values(callers, name, |outcome| outcome.p99_micros);
            let mut latency = |what: &str, ours: &[f64], theirs: &[f64]| {
                let id = format!("postgres.{what}.{face}");
                let ratio = ratio(ours, theirs);
                report.measured(&id, ratio.value, ratio.detail(" ms", 1e3));
            };
            latency("p99", &p99(COMPARED, ours), &p50(COMPARED, base));
            latency("lone", &p50(1, ours), &p50(1, base));
        }
    }
}
