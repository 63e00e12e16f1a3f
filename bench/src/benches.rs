//! The benches by name, and all of them one after the other.
//!
//! In `all` each runs in a process of its own: one that fails or panics is reported as missing
//! and the others go on, and none finds the memory that another left.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::report::Document;
use crate::{
    Pace, edge, figures, growth, http, inprocess, mail, memory, offenders, package, postgres,
    slots, start,
};

pub(crate) struct Bench {
    pub(crate) name: &'static str,
    what: &'static str,
    /// What a full and a quick run take, about, on a quiet machine.
    minutes: [f64; 2],
    /// With what was said behind its name.
    run: fn(Pace, &[&str]) -> Result<()>,
}

#[rustfmt::skip]
pub(crate) const ALL: &[Bench] = &[
    Bench { name: "inprocess", what: "ns per check, beside governor and limitador", minutes: [1.5, 0.5], run: |pace, _| inprocess::run(pace) },
    Bench { name: "memory", what: "bytes per key", minutes: [0.3, 0.1], run: |pace, _| memory::run(pace) },
    Bench { name: "start", what: "from spawn to ready, empty and with keys on disk", minutes: [0.5, 0.2], run: |pace, _| start::run(pace) },
    Bench { name: "http", what: "requests/s, beside an echo, throttlecrab, limitador and Redis", minutes: [7.5, 1.2], run: |pace, _| http::run(pace) },
    Bench { name: "edge", what: "the tower layer, and /gate", minutes: [1.0, 0.3], run: |pace, _| edge::run(pace) },
    Bench { name: "offenders", what: "what recording refusals costs", minutes: [6.0, 3.5], run: |pace, _| offenders::run(pace) },
    Bench { name: "package", what: "size of the npm package", minutes: [0.2, 0.2], run: |pace, _| package::run(pace) },
    Bench { name: "postgres", what: "decisions/s, beside the usual SQL, rate-limiter-flexible and Redis; may be followed by parameters of the store's URL (lanes=8)", minutes: [18.0, 4.0], run: |pace, rest| postgres::run(pace, rest.first().copied().unwrap_or_default()) },
    Bench { name: "slots", what: "slots/s, beside the usual windows in plpgsql and a bare insert", minutes: [3.5, 1.0], run: |pace, _| slots::run(pace) },
    Bench { name: "mail", what: "messages accepted, delivered and waiting", minutes: [1.5, 0.7], run: |pace, _| mail::run(pace) },
    Bench { name: "growth", what: "costs as keys, slots and waiting mail grow; may be followed by checks, slots or mail", minutes: [14.0, 2.0], run: growth::run },
];

pub(crate) fn usage() -> String {
    let mut text = "usage: bench [--quick] NAME\n\n".to_owned();
    let total: f64 = ALL.iter().map(|bench| bench.minutes[0]).sum();
    let _ = writeln!(text, "  {:<10} {:>4.1} min  every bench, then verdicts", "all", total);
    for bench in ALL {
        let _ =
            writeln!(text, "  {:<10} {:>4.1} min  {}", bench.name, bench.minutes[0], bench.what);
    }
    text += "  verdicts              writes docs/figures.md and the README's table from bench/results\n\
             \n--quick is to try the bench, not to publish: it goes to bench/results/quick, and its \
             figures are marked.\nMinutes are those of a full run on a quiet machine, with the \
             peers installed.";
    text
}

/// One bench, by its name.
pub(crate) fn run(pace: Pace, name: &str, rest: &[&str]) -> Result<()> {
    match ALL.iter().find(|bench| bench.name == name) {
        Some(bench) => (bench.run)(pace, rest),
        None => bail!("there is no {name:?}\n{}", usage()),
    }
}

pub(crate) fn run_all(pace: Pace) -> Result<()> {
    let minutes = |bench: &Bench| bench.minutes[usize::from(pace.quick)];
    let expected = |benches: &[Bench]| benches.iter().map(minutes).sum::<f64>();
    let begun = Instant::now();
    let mut failed = Vec::new();
    for (position, bench) in ALL.iter().enumerate() {
        // As late or early as it is so far, it will be for the rest.
        let so_far = expected(&ALL[..position]);
        let pace_of_this_machine = match begun.elapsed().as_secs_f64() / 60.0 {
            passed if so_far > 0.0 => passed / so_far,
            _ => 1.0,
        };
        eprintln!(
            "[{}/{}] {}: {}; about {:.1} min, {:.0} min left of all, {} passed",
            position + 1,
            ALL.len(),
            bench.name,
            bench.what,
            minutes(bench) * pace_of_this_machine,
            (expected(&ALL[position..]) * pace_of_this_machine).ceil(),
            minutes_and_seconds(begun.elapsed()),
        );
        if let Err(reason) = in_its_own_process(bench, pace) {
            eprintln!("bench: {} failed, the others go on: {reason:#}", bench.name);
            let mut document = Document::blank(bench.name, pace)?;
            document.failed = Some(format!("{reason:#}"));
            document.write(bench.name)?;
            failed.push(bench.name);
        }
    }
    figures::write()?;
    eprintln!("all took {}", minutes_and_seconds(begun.elapsed()));
    if !failed.is_empty() {
        bail!("these failed and are missing from the figures: {}", failed.join(", "));
    }
    Ok(())
}

fn in_its_own_process(bench: &Bench, pace: Pace) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    if pace.quick {
        command.arg("--quick");
    }
    let status = command.arg(bench.name).status()?;
    if !status.success() {
        bail!("`bench -- {}` ended with {status}; run it alone to see why", bench.name);
    }
    Ok(())
}

pub(crate) fn minutes_and_seconds(time: Duration) -> String {
    format!("{}:{:02} min", time.as_secs() / 60, time.as_secs() % 60)
}
