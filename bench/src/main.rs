//! Every published figure and the peers, from one command: `cargo run --release -p bench -- all`.
//!
//! Tables go to standard output as Markdown, the raw rounds to `bench/results/*.json`. Contenders
//! take turns within each round, because the machine is never quiet: trust the ratios.

mod contenders;
mod edge;
mod http;
mod http_client;
mod inprocess;
mod mail;
mod memory;
mod offenders;
mod outcome;
mod peers;
mod postgres;
mod report;
mod serve;
mod servers;
mod slots;
mod start;
mod wrk;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

const USAGE: &str = "usage: bench [--quick] all | edge | inprocess | http | mail | memory | offenders | postgres | slots | start";

/// How long everything runs.
#[derive(Clone, Copy, Debug)]
struct Pace {
    rounds: usize,
    slice: Duration,
    /// The same over HTTP, where connections are set up in each.
    http_slice: Duration,
    /// The same on PostgreSQL, where pgbench counts in whole seconds.
    postgres_slice: Duration,
    postgres_callers: &'static [usize],
    keys_in_memory: usize,
    slots_in_burst: usize,
    mail_backlog: usize,
    starts: usize,
}

const FULL: Pace = Pace {
    rounds: 5,
    slice: Duration::from_millis(300),
    http_slice: Duration::from_secs(4),
    postgres_slice: Duration::from_secs(2),
    postgres_callers: &[1, 8, 64, 512],
    keys_in_memory: 1_000_000,
    slots_in_burst: 500_000,
    mail_backlog: 1_000_000,
    starts: 7,
};

/// To try the bench itself, not to publish.
const QUICK: Pace = Pace {
    rounds: 3,
    slice: Duration::from_millis(60),
    http_slice: Duration::from_secs(1),
    postgres_slice: Duration::from_secs(1),
    postgres_callers: &[1, 64],
    keys_in_memory: 200_000,
    slots_in_burst: 50_000,
    mail_backlog: 50_000,
    starts: 3,
};

/// The server's, so that what is measured here is what it does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let (pace, arguments) = match arguments {
        [first, rest @ ..] if first == "--quick" => (QUICK, rest),
        _ => (FULL, arguments),
    };
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["all"] => {
            inprocess::run(pace)?;
            memory::run(pace)?;
            http::run(pace)?;
            offenders::run(pace)?;
            postgres::run(pace, "")?;
            slots::run(pace)?;
            edge::run(pace)?;
            mail::run(pace)?;
            start::run(pace)
        }
        ["inprocess"] => inprocess::run(pace),
        ["memory"] => memory::run(pace),
        ["http"] => http::run(pace),
        ["offenders"] => offenders::run(pace),
        ["postgres"] => postgres::run(pace, ""),
        // With parameters of the store's URL, to try others than the defaults: lanes=8
        ["postgres", parameters] => postgres::run(pace, parameters),
        ["mail"] => mail::run(pace),
        ["slots"] => slots::run(pace),
        ["edge"] => edge::run(pace),
        ["start"] => start::run(pace),
        // The rest are children of the bench itself.
        ["fill-memory", store, keys] => memory::child(store, keys.parse()?),
        ["serve-echo", padding_bytes] => serve::echo(padding_bytes.parse()?),
        ["serve-limitador"] => serve::limitador(),
        _ => bail!(USAGE),
    }
}
