//! Whose processes the servers are: ours, or those of `postgres` if we are root.
//!
//! PostgreSQL and pgbouncer refuse to run as root. Programs also run without our environment: what
//! the developer's shell says about PostgreSQL (`PGHOST`, `PGPASSWORD`, a `.psqlrc`) must not reach
//! a test.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

const INSTEAD_OF_ROOT: &str = "postgres";

/// A program that will run in `folder`, which is also its home.
pub(super) fn command(program: &Path, folder: &Path) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.current_dir(folder).env_clear().env("PATH", path);
    command.env("HOME", folder).env("LC_ALL", "C");
    if let Some(Ids { user, group }) = ids() {
        command.uid(user).gid(group);
    }
    command
}

/// Runs it to its end. Panics with what it said if it fails.
pub(super) fn run(command: &mut Command) -> Output {
    run_with(command, "")
}

/// The same, with something to read.
pub(super) fn run_with(command: &mut Command, input: &str) -> Output {
    let output = output(command, input);
    assert!(
        output.status.success(),
        "{command:?} failed with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// The same, if it may fail.
pub(super) fn output(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = command.spawn().and_then(|mut child| {
        let mut pipe = child.stdin.take().expect("it was asked for");
        // A program that reads no further says by its status why.
        let _ = pipe.write_all(input.as_bytes());
        drop(pipe);
        child.wait_with_output()
    });
    run.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Writes a file that the servers may read, whatever our umask says.
pub(super) fn write(file: &Path, text: &str) {
    std::fs::write(file, text)
        .unwrap_or_else(|error| panic!("{} is not written: {error}", file.display()));
    give(file);
}

/// Makes a file or folder the servers' own.
pub(super) fn give(file: &Path) {
    let Some(Ids { user, group }) = ids() else { return };
    std::os::unix::fs::chown(file, Some(user), Some(group))
        .unwrap_or_else(|error| panic!("{} is not given away: {error}", file.display()));
}

#[derive(Clone, Copy)]
struct Ids {
    user: u32,
    group: u32,
}

/// Another account's ids; none if we can be ourselves.
fn ids() -> Option<Ids> {
    static IDS: OnceLock<Option<Ids>> = OnceLock::new();
    *IDS.get_or_init(|| {
        (id(&["-u"]) == Some(0)).then(|| {
            let user = id(&["-u", INSTEAD_OF_ROOT]);
            let group = id(&["-g", INSTEAD_OF_ROOT]);
            let (user, group) = user.zip(group).expect(
                "servers refuse to run as root and there is no user `postgres`: \
                 `apt-get install postgresql` makes one",
            );
            Ids { user, group }
        })
    })
}

fn id(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).output().expect("`id` is on every system");
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}
