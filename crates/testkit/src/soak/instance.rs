//! An instance as a process of its own: started, killed, started again.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::record;
use super::script::Part;

/// How often a server is started before that is an error.
const SERVER_TRIES: u32 = 100;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// How an instance answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Face {
    /// The library in the process that asks.
    Library,
    /// A real server, asked over HTTP by a process beside it.
    Server { program: PathBuf },
}

/// What it takes to start one.
#[derive(Clone, Debug)]
pub(crate) struct Casting {
    /// This binary, which can play the part.
    pub(crate) program: PathBuf,
    pub(crate) store: String,
    pub(crate) face: Face,
    pub(crate) log: PathBuf,
    pub(crate) part: Part,
}

/// One that runs. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Instance {
    asking: Child,
    /// Closing this ends it.
    words: ChildStdin,
    /// Ended after the one that asks it.
    server: Option<Server>,
}

impl Casting {
    pub(crate) fn start(&self) -> Result<Instance, String> {
        let (server, url) = match &self.face {
            Face::Library => (None, self.store.clone()),
            Face::Server { program } => {
                let server = Server::start_within_tries(program, &self.store)?;
                let url = format!("http://{}", server.address);
                (Some(server), url)
            }
        };
        let mut command = Command::new(&self.program);
        command.arg("soak-child").arg(url).arg(&self.log).args(self.part.to_arguments());
        let said = |error: std::io::Error| format!("{}: {error}", self.program.display());
        let mut asking = command.stdin(Stdio::piped()).spawn().map_err(said)?;
        let words = asking.stdin.take().expect("it was asked for");
        Ok(Instance { asking, words, server })
    }

    /// Whole records written so far.
    pub(crate) fn records(&self) -> u64 {
        std::fs::metadata(&self.log).map_or(0, |file| file.len() / record::BYTES as u64)
    }
}

impl Instance {
    /// Lets it begin; it waits for this once it is open.
    pub(crate) fn begin(&mut self) {
        // One that is dead already says so by its status.
        let _ = self.words.write_all(b"!");
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, String> {
        self.asking.try_wait().map_err(|error| error.to_string())
    }
}

impl Drop for Instance {
    /// SIGKILL, in the middle of whatever it does.
    fn drop(&mut self) {
        // The server first: what it was asked is then in doubt.
        drop(self.server.take());
        let _ = self.asking.kill();
        let _ = self.asking.wait();
    }
}

/// A `tollgate serve` that is killed with SIGKILL when dropped, or when this process ends.
#[derive(Debug)]
struct Server {
    shell: Child,
    address: String,
    /// Kept open: a server that nobody listens to ends.
    said: BufReader<ChildStdout>,
}

impl Server {
    /// A server that finds no database ends; it may be started in the middle of an outage.
    fn start_within_tries(program: &Path, store: &str) -> Result<Self, String> {
        let mut tries = 1;
        loop {
            match Self::start(program, store) {
                Err(_) if tries < SERVER_TRIES => tries += 1,
                started => return started,
            }
            std::thread::sleep(BETWEEN_TRIES);
        }
    }

    fn start(program: &Path, store: &str) -> Result<Self, String> {
        // Whoever holds the shell's input holds the server's life.
        let script = r#""$@" </dev/null & read -r _; kill -9 $! 2>/dev/null"#;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script, "server"]).arg(program);
        command.args(["--log", "off", "serve", "--listen", "127.0.0.1:0", "--store", store]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().map_err(|error| error.to_string())?;
        let said = BufReader::new(shell.stdout.take().expect("it was asked for"));
        let mut server = Self { shell, address: String::new(), said };
        for line in server.said.by_ref().lines().map_while(Result::ok) {
            let rest = line.strip_prefix("tollgate listens on http://");
            if let Some((address, _)) = rest.and_then(|rest| rest.split_once(',')) {
                server.address = address.to_owned();
                return Ok(server);
            }
        }
        Err(format!("{} did not start to listen", program.display()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
