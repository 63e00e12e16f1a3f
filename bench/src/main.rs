//! Every published figure and the peers, from one command: `cargo run --release -p bench -- all`.
//!
//! Tables go to standard output as Markdown, everything measured to `bench/results/*.json`, and
//! from there to `docs/figures.md` and the README. Contenders take turns within each round,
//! because the machine is never quiet: trust the ratios.

mod benches;
mod contenders;
mod disorder;
mod edge;
mod figures;
mod growth;
mod http;
mod http_client;
mod inprocess;
mod machine;
mod mail;
mod memory;
mod offenders;
mod outcome;
mod package;
mod peers;
mod postgres;
mod redis;
mod report;
mod serve;
mod servers;
mod slots;
mod start;
mod statistics;
mod targets;
mod wrk;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

/// How long everything runs.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// To try the bench itself, not to publish.
    quick: bool,
    rounds: usize,
    slice: Duration,
    /// The same over HTTP, where connections are set up in each.
    http_slice: Duration,
    /// The same on PostgreSQL, where pgbench counts in whole seconds.
    postgres_slice: Duration,
    postgres_rounds: usize,
    postgres_callers: &'static [usize],
    keys_in_memory: usize,
    slots_in_burst: usize,
    mail_backlog: usize,
    starts: usize,
    growth: Growth,
}

/// The sizes at which costs are taken.
#[derive(Clone, Copy, Debug)]
struct Growth {
    keys: &'static [usize],
    keys_on_postgres: &'static [usize],
    slots: &'static [usize],
    mail: &'static [usize],
}

const FULL: Pace = Pace {
    quick: false,
    rounds: 5,
    slice: Duration::from_millis(300),
    http_slice: Duration::from_secs(4),
    postgres_slice: Duration::from_secs(2),
    postgres_rounds: 3,
    postgres_callers: &[1, 8, 64, 512],
    keys_in_memory: 1_000_000,
    slots_in_burst: 500_000,
    mail_backlog: 1_000_000,
    starts: 7,
    growth: Growth {
        keys: &[1_000, 100_000, 1_000_000, 10_000_000],
        keys_on_postgres: &[1_000, 100_000, 1_000_000, 10_000_000],
        slots: &[1_000, 10_000, 100_000, 1_000_000, 5_000_000],
        mail: &[1_000, 100_000, 1_000_000],
    },
};

const QUICK: Pace = Pace {
    quick: true,
    rounds: 3,
    slice: Duration::from_millis(60),
    http_slice: Duration::from_secs(1),
    postgres_slice: Duration::from_secs(1),
    postgres_rounds: 2,
    postgres_callers: &[1, 64],
    keys_in_memory: 200_000,
    slots_in_burst: 50_000,
    mail_backlog: 50_000,
    starts: 3,
    growth: Growth {
        keys: &[1_000, 100_000, 1_000_000],
        keys_on_postgres: &[1_000, 100_000],
        slots: &[1_000, 10_000, 100_000],
        mail: &[1_000, 20_000],
    },
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
        ["--help" | "-h" | "help"] => {
            println!("{}", benches::usage());
            Ok(())
        }
        ["all"] => benches::run_all(pace),
        ["verdicts"] => figures::write(),
        // These are children of the bench itself.
        ["fill-memory", store, keys] => memory::child(store, keys.parse()?),
        ["grow-checks", store, sizes @ ..] => growth::checks_child(store, sizes),
        ["serve-echo", padding_bytes] => serve::echo(padding_bytes.parse()?),
        ["serve-limitador"] => serve::limitador(),
        [name, rest @ ..] => benches::run(pace, name, rest),
        [] => bail!("{}", benches::usage()),
    }
}
