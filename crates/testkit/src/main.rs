//! Runs what takes too long for `cargo test`: `testkit kill`, `testkit soak` and `testkit faults`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use testkit::kill::{self, Plan};
use testkit::{faults, soak};
use tollgate::Durability;

const USAGE: &str = "usage:
  testkit kill [--kills N] [--durability sync|interval] [--folder DIR]
  testkit soak [--decisions N] [--instances N] [--kills N] [--seed N] [--server PROGRAM|none]
               [--folder DIR]
  testkit faults [NAME ...] [--server PROGRAM] [--callers N] [--idle N] [--write]

kill: starts a process that checks as fast as it can, kills it N times (200) with SIGKILL at random
moments, and looks each time whether the file holds what was answered.

soak: starts a PostgreSQL of its own and N (3) processes that check hot keys on it as fast as they
can, and one real server over HTTP (the tollgate beside this program, if there is one). Limits
change, instances are killed N (120) times, PostgreSQL crashes now and then. Goes on until the
database has made N (10000000) decisions, and looks whether any window ever held one too many.

faults: breaks a real server (the tollgate beside this program), its disk, its database, its network and
its other clients, one fault after the other (or those named), while N (32) callers ask it over HTTP.
Prints a table of what they saw, how soon it was over, and whether every count is right. --write puts
it into docs/reliability.md.";

/// Where the table of faults is published.
const RELIABILITY: &str = "docs/reliability.md";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["kill", options @ ..] => kill(options),
        ["soak", options @ ..] => soak(options),
        ["faults", options @ ..] => faults(options),
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
