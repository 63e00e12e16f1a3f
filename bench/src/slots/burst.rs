//! Bursts: everybody wants the same instant.

use std::time::{Duration, Instant as Stopwatch};

use anyhow::Result;
use indicatif::ProgressBar;
use tollgate::Instant;

use super::Figure;
use super::rig::{Rig, Scheduler};
use crate::Pace;
use crate::outcome::Outcome;
use crate::report::progress;
use crate::statistics::median;

const CALLERS: usize = 32;
const BATCH: usize = 1000;
/// The first and the last of a burst that are compared.
const ENDS: usize = 10_000;
/// After a burst, for each time they may ask for.
const SINGLE_EVENTS: usize = 200;

/// 32 callers with an event each, on PostgreSQL; in the usual way and in ours.
pub(crate) fn callers(rig: &Rig, pace: Pace) -> Result<Vec<Figure>> {
    let slice = pace.postgres_slice;
    let (mut usual, mut ours, mut p99, mut ratios) = (vec![], vec![], vec![], vec![]);
    let bar = progress(pace.rounds, "32 callers");
    for round in 0..pace.rounds {
        // A burst of its own for each round: an instant that nobody asked for before.
        let script = format!(
            "\\set id random(1, 9000000000000000)\n\
             select usual_slot_assign('{round}-' || :id, \
             '2030-01-01'::timestamptz + '{round} days', 100, 4);\n"
        );
        let outcome = rig.sql(&script, CALLERS, slice)?;
        let schedule = format!("burst-{round}");
        rig.runtime.block_on(rig.on_postgres.schedule(&schedule))?;
        let given = run_callers(rig, &rig.on_postgres, &schedule, slice)?;
        usual.push(outcome.requests_per_second());
        ours.push(given.requests_per_second());
        p99.push(given.p99_micros / 1e3);
        ratios.push(given.requests_per_second() / outcome.requests_per_second());
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(vec![
        Figure::new("PostgreSQL, 32 callers, one burst: usual windows in plpgsql", usual, "/s"),
        Figure::new("PostgreSQL, 32 callers, one burst: ours", ours, "/s"),
        Figure::new("PostgreSQL, 32 callers, one burst: our p99", p99, " ms"),
        Figure::new("PostgreSQL, 32 callers, one burst: ours to the usual", ratios, " ×")
            .target("slots.callers".into()),
    ])
}

fn run_callers(
    rig: &Rig,
    scheduler: &Scheduler,
    schedule: &str,
    slice: Duration,
) -> Result<Outcome> {
    let at = Instant::from_micros(1_900_000_000_000_000);
    let started = Stopwatch::now();
    let calls: Vec<_> = (0..CALLERS)
        .map(|_| {
            let asking = scheduler.clone().ask_until(schedule.to_owned(), at, started + slice);
            rig.runtime.spawn(asking)
        })
        .collect();
    let mut latencies = Vec::new();
    for call in calls {
        latencies.append(&mut rig.runtime.block_on(call)??);
    }
    Outcome::of(latencies, started.elapsed())
}

/// Batches of 1,000 into one burst of many: how fast, and whether the last are as fast as the first.
pub(crate) fn batches(rig: &Rig, pace: Pace) -> Result<Vec<Figure>> {
    let schedulers = [(&rig.on_postgres, "postgres"), (&rig.embedded, "sqlite")];
    let mut rounds = [Batches::default(), Batches::default()];
    let bar = progress(pace.rounds * schedulers.len() * pace.slots_in_burst / BATCH, "batches");
    for round in 0..pace.rounds {
        for ((scheduler, _), batches) in schedulers.iter().zip(&mut rounds) {
            batches.measure(rig, scheduler, &format!("batches-{round}"), pace, &bar)?;
        }
    }
    bar.finish_and_clear();
    let count = pace.slots_in_burst;
    let figures = schedulers.into_iter().zip(rounds).flat_map(|((scheduler, id), batches)| {
        let name = scheduler.name;
        let last = format!("{name}, the last 10,000 of {count} to the first, by speed");
        let earlier =
            format!("{name}, after {count}: an earlier time to a time of its own, by speed");
        [
            Figure::new(format!("{name}, batches of 1,000, durable"), batches.rates, " slots/s")
                .target(format!("slots.batches.{id}")),
            Figure::new(last, batches.last_to_first, " ×").target(format!("slots.last.{id}")),
            Figure::new(earlier, batches.earlier, " ×").target(format!("slots.earlier.{id}")),
        ]
    });
    Ok(figures.collect())
}

/// Of one store, a value for each round.
#[derive(Default)]
struct Batches {
    rates: Vec<f64>,
    last_to_first: Vec<f64>,
    earlier: Vec<f64>,
}

impl Batches {
    fn measure(
        &mut self,
        rig: &Rig,
        scheduler: &Scheduler,
        schedule: &str,
        pace: Pace,
        bar: &ProgressBar,
    ) -> Result<()> {
        rig.runtime.block_on(scheduler.schedule(schedule))?;
        let at = Instant::from_micros(1_900_000_000_000_000);
        let mut took = Vec::new();
        for _ in 0..pace.slots_in_burst / BATCH {
            took.push(rig.runtime.block_on(scheduler.ask(schedule, at, BATCH))?);
            bar.inc(1);
        }
        let total: Duration = took.iter().sum();
        self.rates.push(pace.slots_in_burst as f64 / total.as_secs_f64());
        // Medians of their batches: one flush that takes long is not a trend.
        let micros = |part: &[Duration]| {
            median(&part.iter().map(|took| took.as_micros() as f64).collect::<Vec<_>>())
        };
        let ends = ENDS / BATCH;
        self.last_to_first.push(micros(&took[..ends]) / micros(&took[took.len() - ends..]));
        self.earlier.push(earlier_time(rig, scheduler, schedule, at)?);
        Ok(())
    }
}

/// Single events after a burst, by the time they ask for: one long after it, in a window of their own; the burst's,
/// where all is full; and ever earlier ones before it. The slower of the last two, to the first.
fn earlier_time(rig: &Rig, scheduler: &Scheduler, schedule: &str, at: Instant) -> Result<f64> {
    let window = 4_000_000;
    let mut micros = [Vec::new(), Vec::new(), Vec::new()];
    for number in 0..SINGLE_EVENTS {
        let windows = (number as i64 + 1) * window;
        let own = Instant::from_micros(at.as_micros() + (1 << 40) + windows);
        let before = Instant::from_micros(at.as_micros() - windows);
        for (place, at) in [own, at, before].into_iter().enumerate() {
            let took = rig.runtime.block_on(scheduler.ask(schedule, at, 1))?;
            micros[place].push(took.as_micros() as f64);
        }
    }
    let [own, full, before] = micros.map(|micros| median(&micros));
    Ok(own / full.max(before))
}
