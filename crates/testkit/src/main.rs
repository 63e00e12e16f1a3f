//! Runs what takes too long for `cargo test`: `testkit kill` and `testkit soak`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use testkit::kill::{self, Plan};
use testkit::soak;
use tollgate::Durability;

const USAGE: &str = "usage:
  testkit kill [--kills N] [--durability sync|interval] [--folder DIR]
  testkit soak [--decisions N] [--instances N] [--kills N] [--seed N] [--server PROGRAM|none]
               [--folder DIR]

kill: starts a process that checks as fast as it can, kills it N times (200) with SIGKILL at random
moments, and looks each time whether the file holds what was answered.

soak: starts a PostgreSQL of its own and N (3) processes that check hot keys on it as fast as they
can, and one real server over HTTP (the tollgate beside this program, if there is one). Limits
change, instances are killed N (120) times, PostgreSQL crashes now and then. Goes on until the
database has made N (10000000) decisions, and looks whether any window ever held one too many.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["kill", options @ ..] => kill(options),
        ["soak", options @ ..] => soak(options),
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
