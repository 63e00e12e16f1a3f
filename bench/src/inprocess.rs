//! Nanoseconds per check and thread, without any network.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::Pace;
use crate::contenders::{
    self, Contender, GOVERNOR, GOVERNOR_REFUSING, LIMITADOR, LIMITADOR_THREE, OURS_BUCKET,
    OURS_FIXED, OURS_REFUSING, OURS_SLIDING, OURS_THREE, Subject, Tally, Turn,
};
use crate::disorder::Disorder;
use crate::report::{Report, Table, progress};
use crate::statistics::{median, number, ratio};

const THREADS: [usize; 2] = [1, 2];
const MANY_KEYS: usize = 100_000;

/// Whom a contender is compared with.
const PEERS: [(&str, &str); 6] = [
    (OURS_BUCKET, GOVERNOR),
    (OURS_FIXED, GOVERNOR),
    (OURS_SLIDING, GOVERNOR),
    (OURS_REFUSING, GOVERNOR_REFUSING),
    (OURS_THREE, LIMITADOR_THREE),
    (LIMITADOR, GOVERNOR),
];

/// By contender: nanoseconds per check in each round.
type Rounds = BTreeMap<&'static str, Vec<f64>>;

struct Cell {
    keys: &'static str,
    threads: usize,
    rounds: Rounds,
}

/// Neighbours on the same machine come and go within a tenth of a second: many short rounds have a
/// steadier median than a few long ones.
const SHORTER: usize = 4;

pub(crate) fn run(pace: Pace) -> Result<()> {
    let (rounds, slice) = (pace.rounds * SHORTER, pace.slice / SHORTER as u32);
    let pace = Pace { rounds, slice, ..pace };
    let mut report = Report::new("inprocess", "In process", pace)?;
    report.note(format!(
        "Nanoseconds per check and thread: medians of {} interleaved rounds of {} ms each, \
         fastest and slowest round in brackets; ratios are medians of the rounds' ratios. \
         Each round is in another order, and each contender goes once through the keys before \
         its time is taken. Ours writes over the decision it gave before (`Limiter::check_into`).",
        pace.rounds,
        pace.slice.as_millis()
    ));
    let mut cells = Vec::new();
    for (keys, subjects) in [("hot", vec![Subject::new(0)]), ("100k", shuffled_subjects())] {
        let contenders: Vec<Contender> = contenders::all()?
            .into_iter()
            .filter(|contender| contender.keyed || subjects.len() == 1)
            .collect();
        fill(&contenders, &subjects);
        for threads in THREADS {
            let rounds = measure(&contenders, &subjects, threads, pace, keys)?;
            cells.push(Cell { keys, threads, rounds });
        }
    }
    for cell in &cells {
        report.table(table(cell));
        hold_against_targets(&mut report, cell);
    }
    let rows: Vec<Value> = cells
        .iter()
        .map(|cell| {
            json!({ "keys": cell.keys, "threads": cell.threads, "ns_per_check": cell.rounds })
        })
        .collect();
    report.finish(json!({ "cells": rows }))
}

/// In an order that has nothing to do with the order in which the maps were filled.
fn shuffled_subjects() -> Vec<Subject> {
    let mut order: Vec<usize> = (0..MANY_KEYS).collect();
    Disorder::number(0).shuffle(&mut order);
    order.into_iter().map(Subject::new).collect()
}

/// Every key is known, in its natural order, before anything is measured.
fn fill(contenders: &[Contender], subjects: &[Subject]) {
    let natural: Vec<Subject> = (0..subjects.len()).map(Subject::new).collect();
    let bar = progress(contenders.len(), "filling");
    for contender in contenders {
        let stop = AtomicBool::new(false);
        let most = natural.len() as u64;
        (contender.run)(&Turn { subjects: &natural, first: 0, most, stop: &stop });
        bar.inc(1);
    }
    bar.finish_and_clear();
}

fn measure(
    contenders: &[Contender],
    subjects: &[Subject],
    threads: usize,
    pace: Pace,
    keys: &str,
) -> Result<Rounds> {
    let mut rounds = Rounds::new();
    let mut order: Vec<&Contender> = contenders.iter().collect();
    let mut random = Disorder::number(threads);
    let bar = progress(pace.rounds * contenders.len(), &format!("{keys}, {threads} threads"));
    for _ in 0..pace.rounds {
        // Who comes after one that fills the caches with its own finds its keys in none of them.
        random.shuffle(&mut order);
        for contender in &order {
            bar.set_message(contender.name);
            let ns = slice(contender, subjects, threads, pace)?;
            rounds.entry(contender.name).or_default().push(ns);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(rounds)
}

fn slice(contender: &Contender, subjects: &[Subject], threads: usize, pace: Pace) -> Result<f64> {
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(threads + 1);
    let turns: Vec<(Tally, f64)> = std::thread::scope(|scope| {
        let (stop, ready) = (&stop, &ready);
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let first = thread * subjects.len() / threads;
                scope.spawn(move || {
                    let turn = |most| (contender.run)(&Turn { subjects, first, most, stop });
                    turn(subjects.len() as u64);
                    ready.wait();
                    let started = Instant::now();
                    let tally = turn(u64::MAX);
                    (tally, started.elapsed().as_nanos() as f64)
                })
            })
            .collect();
        ready.wait();
        std::thread::sleep(pace.slice);
        stop.store(true, Ordering::Relaxed);
        running.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    ensure!(turns.len() == threads, "{}: a thread panicked", contender.name);
    for (tally, _) in &turns {
        let expected = if contender.allows { tally.checks } else { 0 };
        ensure!(
            tally.allowed == expected,
            "{}: {} of {} allowed, not {expected}",
            contender.name,
            tally.allowed,
            tally.checks
        );
    }
    let sum: f64 = turns.iter().map(|(tally, elapsed)| elapsed / tally.checks as f64).sum();
    Ok(sum / threads as f64)
}

fn table(cell: &Cell) -> Table {
    let heading = format!(
        "{} key{}, {} thread(s)",
        cell.keys,
        if cell.keys == "hot" { "" } else { "s" },
        cell.threads
    );
    let mut table = Table::new(&heading, &["contender", "ns per check", "to its peer"]);
    for (name, rounds) in &cell.rounds {
        let peer = PEERS.iter().find(|(ours, _)| ours == name).map(|(_, peer)| *peer);
        let compared = peer.map_or("–".into(), |peer| {
            format!("{} × {peer}", number(ratio(rounds, &cell.rounds[peer]).value))
        });
        table.row([(*name).to_owned(), spread(rounds), compared]);
    }
    table
}

fn spread(rounds: &[f64]) -> String {
    let fastest = rounds.iter().copied().fold(f64::INFINITY, f64::min);
    let slowest = rounds.iter().copied().fold(0.0, f64::max);
    format!("{} ({}–{})", number(median(rounds)), number(fastest), number(slowest))
}

fn hold_against_targets(report: &mut Report, cell: &Cell) {
    let place = format!("{}.{}", cell.keys, cell.threads);
    let rounds = |name: &str| &cell.rounds[name];
    for (id, ratio) in [
        ("bucket", ratio(rounds(OURS_BUCKET), rounds(GOVERNOR))),
        ("three", ratio(rounds(LIMITADOR_THREE), rounds(OURS_THREE))),
    ] {
        let id = format!("inprocess.{id}.{place}");
        report.measured(&id, ratio.value, ratio.detail(" ns", 1.0));
    }
    let id = format!("inprocess.three_ns.{place}");
    report.measured(&id, median(rounds(OURS_THREE)), String::new());
}
