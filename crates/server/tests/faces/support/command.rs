//! Commands that end by themselves.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{Server, eventually};

/// A command that ended: its exit code and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A command that does not see the settings of whoever runs the tests.
pub(crate) fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for name in [
        "TOLLGATE_ADMIN_TOKEN",
        "TOLLGATE_TOKEN",
        "TOLLGATE_SERVER",
        "TOLLGATE_CA_FILE",
        "TOLLGATE_LOG",
        "TOLLGATE_MAIL_KEY",
        "TOLLGATE_TENANT",
        "TOLLGATE_SMTP_PASSWORD",
        "TOLLGATE_REPORT_SECRET",
    ] {
        command.env_remove(name);
    }
    command
}

/// A client command, told which server to talk to.
pub(crate) fn tollgate(server: &Server, args: &[&str]) -> Ended {
    let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
    command.args(args).env("TOLLGATE_SERVER", server.url(""));
    Ended::of(command)
}

/// A command without a server, in a folder.
pub(crate) fn alone(folder: &Path, args: &[&str]) -> Ended {
    let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
    command.args(args).current_dir(folder);
    Ended::of(command)
}

impl Ended {
    /// Runs to the end; a command that does not end fails the test.
    pub(crate) fn of(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Reaped(command.spawn().unwrap());
        let out = read(child.0.stdout.take().unwrap());
        let err = read(child.0.stderr.take().unwrap());
        let status = eventually("the command ends", || child.0.try_wait().unwrap());
        let code = status.code().unwrap_or_else(|| panic!("ended by a signal: {status}"));
        Self { code, out: out.join().unwrap(), err: err.join().unwrap() }
    }

    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Standard output as exactly one JSON document.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A command that does not end does not outlive its test either.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read(mut source: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        source.read_to_string(&mut text).unwrap();
        text
    })
}
