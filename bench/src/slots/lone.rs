//! One caller, one event at a time, beside a bare durable insert.

use std::time::Instant as Stopwatch;

use anyhow::Result;
use rusqlite::Connection;
use tollgate::Instant;

use super::Figure;
use super::rig::{Rig, Scheduler};
use crate::Pace;
use crate::report::progress;
use crate::statistics::median;

/// Events in each round.
const EVENTS: usize = 1000;

pub(crate) fn calls(rig: &Rig, pace: Pace) -> Result<Vec<Figure>> {
    let insert = "\\set id random(1, 9000000000000000)\n\
                  insert into bare_event values ('event-' || :id, now());\n";
    let file = bare_file(rig)?;
    let mut postgres = (vec![], vec![]);
    let mut embedded = (vec![], vec![]);
    let bar = progress(pace.rounds, "a lone caller");
    for round in 0..pace.rounds {
        postgres.0.push(rig.sql(insert, 1, pace.postgres_slice)?.p50_micros / 1e3);
        postgres.1.push(slots(rig, &rig.on_postgres, round)?);
        embedded.0.push(inserts(&file, round)?);
        embedded.1.push(slots(rig, &rig.embedded, round)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut figures = Vec::new();
    for (name, id, (bare, ours)) in
        [("PostgreSQL", "postgres", postgres), ("SQLite", "sqlite", embedded)]
    {
        let ratios = ours.iter().zip(&bare).map(|(ours, bare)| ours / bare).collect();
        figures.push(Figure::new(format!("{name}, a lone caller: bare insert, p50"), bare, " ms"));
        figures.push(Figure::new(format!("{name}, a lone caller: slot, p50"), ours, " ms"));
        let what = format!("{name}, a lone caller: slot to bare insert");
        figures.push(Figure::new(what, ratios, " ×").target(format!("slots.lone.{id}")));
    }
    Ok(figures)
}

/// The median time of a slot.
fn slots(rig: &Rig, scheduler: &Scheduler, round: usize) -> Result<f64> {
    let schedule = format!("lone-{round}");
    let at = Instant::from_micros(1_900_000_000_000_000);
    rig.runtime.block_on(async {
        scheduler.schedule(&schedule).await?;
        let mut millis = Vec::with_capacity(EVENTS);
        for _ in 0..EVENTS {
            millis.push(scheduler.ask(&schedule, at, 1).await?.as_micros() as f64 / 1e3);
        }
        Ok(median(&millis))
    })
}

/// A file with the same settings as the store's.
fn bare_file(rig: &Rig) -> Result<Connection> {
    let file = Connection::open(rig.folder().join("bare.db"))?;
    file.execute_batch(
        "pragma locking_mode = exclusive; pragma journal_mode = wal; pragma synchronous = full; \
         create table bare_event (event_id text primary key, requested_at integer not null);",
    )?;
    Ok(file)
}

fn inserts(file: &Connection, round: usize) -> Result<f64> {
    let mut insert = file.prepare("insert into bare_event values (?1, ?2)")?;
    let mut millis = Vec::with_capacity(EVENTS);
    for number in 0..EVENTS {
        let id = format!("event-{round}-{number}");
        let started = Stopwatch::now();
        insert.execute((id, 1_900_000_000_000_000_i64))?;
        millis.push(started.elapsed().as_micros() as f64 / 1e3);
    }
    Ok(median(&millis))
}
