//! Runs what takes too long for `cargo test`: `testkit kill`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use testkit::kill::{self, Plan};
use tollgate::Durability;

const USAGE: &str = "usage: testkit kill [--kills N] [--durability sync|interval] [--folder DIR]

Starts a process that checks as fast as it can, kills it N times (200) with SIGKILL at random
moments, and looks each time whether the file holds what was answered.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["kill", options @ ..] => kill(options),
        // What tests start: one to kill it, one to make its writes fail.
        ["hammer", file, durability] => kill::hammer(Path::new(file), durability),
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
