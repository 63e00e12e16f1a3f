//! Runs what takes too long for `cargo test`: `testkit kill`, `soak`, `faults` and `sim`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use testkit::kill::{self, Plan};
use testkit::{faults, sim, soak};
use tollgate::Durability;

const USAGE: &str = "usage:
  testkit kill [--kills N] [--durability sync|interval] [--folder DIR]
  testkit soak [--decisions N] [--instances N] [--kills N] [--seed N] [--server PROGRAM|none]
               [--folder DIR]
  testkit faults [NAME ...] [--server PROGRAM] [--callers N] [--idle N] [--write]
  testkit sim  [--seed N] [--count N] [--seeds FROM..TO] [--tell yes]

kill: starts a process that checks as fast as it can, kills it N times (200) with SIGKILL at random
moments, and looks each time whether the file holds what was answered.

soak: starts a PostgreSQL of its own and N (3) processes that check hot keys on it as fast as they
can, and one real server over HTTP (the tollgate beside this program, if there is one). Limits
change, instances are killed N (120) times, PostgreSQL crashes now and then. Goes on until the
database has made N (10000000) decisions, and looks whether any window ever held one too many.

faults: breaks a real server (the tollgate beside this program), its disk, its database, its network and
its other clients, one fault after the other (or those named), while N (32) callers ask it over HTTP.
Prints a table of what they saw, how soon it was over, and whether every count is right. --write puts
it into docs/reliability.md.

sim: simulates instances, traffic, faults and the database in one thread, N (1000) times from seed
N (1) on, and looks whether every answer was right. A seed is the same history each time; --tell
prints it.";

/// Where the table of faults is published.
const RELIABILITY: &str = "docs/reliability.md";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["kill", options @ ..] => kill(options),
        ["soak", options @ ..] => soak(options),
        ["faults", options @ ..] => faults(options),
        ["sim", options @ ..] => sim(options),
        // What tests start: to kill it, to be one of several, to make its writes fail.
        ["hammer", file, durability] => kill::hammer(Path::new(file), durability),
        ["soak-child", url, log, part @ ..] => soak::play(url, Path::new(log), part),
        ["puppet", file] => testkit::puppet::dance(Path::new(file)),
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn kill(options: &[&str]) -> Result<(), String> {
    let own_folder = std::env::temp_dir().join(testkit::random::name("tollgate-kill"));
    let mut plan = Plan {
        kills: 200,
        durability: Durability::Sync,
        program: std::env::current_exe().map_err(|error| error.to_string())?,
        folder: own_folder.clone(),
        room: Duration::from_millis(10),
    };
    for option in options.chunks(2) {
        match option {
            ["--kills", kills] => plan.kills = kills.parse().map_err(|_| USAGE)?,
            ["--durability", "sync"] => plan.durability = Durability::Sync,
            ["--durability", "interval"] => plan.durability = Durability::Interval,
            ["--folder", folder] => plan.folder = PathBuf::from(folder),
            _ => return Err(USAGE.into()),
        }
    }
    std::fs::create_dir_all(&plan.folder).map_err(|error| error.to_string())?;
    let summary = kill::run(&plan, |summary| {
        if summary.kills.is_multiple_of(20) {
            eprintln!("{summary}");
        }
    })
    .map_err(|error| format!("{error}; the file is kept in {}", plan.folder.display()))?;
    println!("durability {:?}: {summary}", plan.durability);
    if plan.folder == own_folder {
        std::fs::remove_dir_all(&own_folder).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn soak(options: &[&str]) -> Result<(), String> {
    let said = |error: std::io::Error| error.to_string();
    let own_folder = std::env::temp_dir().join(testkit::random::name("tollgate-soak"));
    let program = std::env::current_exe().map_err(said)?;
    let mut plan = soak::Plan {
        decisions: 10_000_000,
        instances: 3,
        kills: 120,
        seed: testkit::random::number(),
        server: Some(program.with_file_name("tollgate")).filter(|beside| beside.is_file()),
        program,
        folder: own_folder.clone(),
    };
    for option in options.chunks(2) {
        match option {
            ["--decisions", decisions] => plan.decisions = decisions.parse().map_err(|_| USAGE)?,
            ["--instances", instances] => plan.instances = instances.parse().map_err(|_| USAGE)?,
            ["--kills", kills] => plan.kills = kills.parse().map_err(|_| USAGE)?,
            ["--seed", seed] => plan.seed = seed.parse().map_err(|_| USAGE)?,
            ["--server", "none"] => plan.server = None,
            ["--server", program] => plan.server = Some(PathBuf::from(program)),
            ["--folder", folder] => plan.folder = PathBuf::from(folder),
            _ => return Err(USAGE.into()),
        }
    }
    std::fs::create_dir_all(&plan.folder).map_err(said)?;
    let server = plan.server.as_ref().map_or("no".into(), |server| server.display().to_string());
    println!("seed {}, {} instances, {server} server over HTTP", plan.seed, plan.instances);
    let summary = soak::run(&plan).map_err(|error| {
        format!("{error}; seed {}; logs in {}", plan.seed, plan.folder.display())
    })?;
    println!("{summary}");
    if summary.wrongs() > 0 {
        let folder = plan.folder.display();
        return Err(format!("something is wrong; seed {}; logs in {folder}", plan.seed));
    }
    if plan.folder == own_folder {
        std::fs::remove_dir_all(&own_folder).map_err(said)?;
    }
    Ok(())
}

fn faults(options: &[&str]) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut plan = faults::Plan::of(program.with_file_name("tollgate"));
    let (mut names, mut write) = (Vec::new(), false);
    let mut rest = options;
    loop {
        rest = match rest {
            [] => break,
            ["--server", program, rest @ ..] => {
                plan.server = PathBuf::from(program);
                rest
            }
            ["--callers", callers, rest @ ..] => {
                plan.callers = callers.parse().map_err(|_| USAGE)?;
                rest
            }
            ["--idle", idle, rest @ ..] => {
                plan.idle = idle.parse().map_err(|_| USAGE)?;
                rest
            }
            ["--write", rest @ ..] => {
                write = true;
                rest
            }
            [option, ..] if option.starts_with('-') => return Err(USAGE.into()),
            [name, rest @ ..] => {
                names.push(*name);
                rest
            }
        };
    }
    if !plan.server.is_file() {
        let server = plan.server.display();
        return Err(format!("{server} is not there: `cargo build --release`, or --server PROGRAM"));
    }
    if write && !names.is_empty() {
        return Err("--write publishes the whole table: leave the names out".into());
    }
    if names.is_empty() {
        names.extend(faults::NAMES);
    }
    let outcomes = faults::run(&plan, &names)?;
    let table = faults::table(&outcomes);
    println!("{table}");
    if write {
        let build = if cfg!(debug_assertions) { "debug" } else { "release" };
        let date = jiff::Zoned::now().date();
        let callers = plan.callers;
        let text = format!(
            "`cargo run --release -p testkit -- faults --write`, {date}, {build} build, {callers} callers.\n\n{table}"
        );
        faults::write_into(Path::new(RELIABILITY), &text)?;
    }
    match outcomes.iter().filter(|outcome| !faults::is_well(outcome)).count() {
        0 => Ok(()),
        broken => Err(format!("{broken} of {} faults break a promise", outcomes.len())),
    }
}

fn sim(options: &[&str]) -> Result<(), String> {
    let (mut first, mut count, mut tell) = (1, None, false);
    for option in options.chunks(2) {
        match option {
            ["--seed", seed] => first = seed.parse().map_err(|_| USAGE)?,
            ["--count", seeds] => count = Some(seeds.parse().map_err(|_| USAGE)?),
            ["--seeds", range] => {
                let (from, to) = range.split_once("..").ok_or(USAGE)?;
                first = from.parse().map_err(|_| USAGE)?;
                let to: u64 = to.parse().map_err(|_| USAGE)?;
                count = Some(to.saturating_sub(first));
            }
            ["--tell", "yes"] => tell = true,
            _ => return Err(USAGE.into()),
        }
    }
    if tell {
        println!("{}", sim::tell(first));
    }
    let alone = options.contains(&"--seed");
    let count: u64 = count.unwrap_or(if alone { 1 } else { 1000 });
    let started = std::time::Instant::now();
    let mut told = started;
    let mut tally = sim::Tally::default();
    for seed in first..first.saturating_add(count) {
        let one = sim::run(seed).map_err(|failure| {
            format!("{failure}\nafter {} seeds; again: testkit sim --seed {seed}", tally.seeds + 1)
        })?;
        tally.add(&one);
        if told.elapsed().as_secs() >= 5 {
            told = std::time::Instant::now();
            eprintln!("{} of {count} seeds, {} s", tally.seeds, started.elapsed().as_secs());
        }
    }
    println!("{tally}, in {} ms: all answers were right", started.elapsed().as_millis());
    Ok(())
}
