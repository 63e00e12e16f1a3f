//! A real `tollgate serve`: started, stopped, killed, and started again at the same address.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::servers::free_port;

/// What a start or a stop may take: two cores that compile at the same time are slow.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(2);

/// How a server is started.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) program: PathBuf,
    /// For its configuration.
    pub(super) folder: PathBuf,
    pub(super) store: String,
    /// The configuration file.
    pub(super) config: String,
}

/// One that runs, or that was ended and can be started again. Killed when dropped.
#[derive(Debug)]
pub(super) struct Server {
    setup: Setup,
    address: String,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    /// Kept open: a server that nobody listens to ends.
    _said: BufReader<ChildStdout>,
}

impl Server {
    /// Returns when it listens.
    pub(super) fn start(setup: Setup) -> Result<Self, String> {
        let config = setup.folder.join("tollgate.toml");
        std::fs::write(config, &setup.config).map_err(|error| error.to_string())?;
        let address = format!("127.0.0.1:{}", free_port());
        let mut server = Self { setup, address, running: None };
        server.start_again()?;
        Ok(server)
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn store(&self) -> &str {
        &self.setup.store
    }

    pub(super) fn id(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    /// Returns when it listens, at the address it had.
    pub(super) fn start_again(&mut self) -> Result<(), String> {
        let Setup { program, folder, store, .. } = &self.setup;
        // A file that may not grow raises a signal that ends a process, unless that is ignored; what is
        // ignored stays so across exec.
        let mut command = Command::new("bash");
        command.args(["-c", r#"trap "" XFSZ; exec "$@""#, "bash"]).arg(program);
        command.args(["--log", "off", "serve", "--listen", &self.address, "--store", store]);
        command.arg("--config").arg(folder.join("tollgate.toml")).current_dir(folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let said = |error: std::io::Error| format!("{}: {error}", program.display());
        let mut child = command.spawn().map_err(said)?;
        let stdout = BufReader::new(child.stdout.take().ok_or("it has no output")?);
        let running = self.running.insert(Running { child, _said: stdout });
        let mut line = String::new();
        while running._said.read_line(&mut line).map_err(said)? > 0 {
            if line.starts_with("tollgate listens on ") {
                return Ok(());
            }
            line.clear();
        }
        Err(format!("{} did not start to listen on {}", program.display(), self.address))
    }

    /// SIGKILL. Returns when it is gone.
    pub(super) fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }

    /// SIGTERM. Returns how it ended.
    pub(super) fn terminate(&mut self) -> Result<ExitStatus, String> {
        let mut running = self.running.take().ok_or("there is no server to stop")?;
        run("kill", &["-s", "TERM", &running.child.id().to_string()])?;
        let begun = Instant::now();
        loop {
            if let Some(status) = running.child.try_wait().map_err(|error| error.to_string())? {
                return Ok(status);
            }
            if begun.elapsed() > PATIENCE {
                let _ = running.child.kill();
                let _ = running.child.wait();
                return Err(format!("the server did not stop within {} s", PATIENCE.as_secs()));
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a program of the system that must succeed.
pub(super) fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {}", arguments.join(" "), said.trim_end()))
}

/// A folder that is removed when dropped.
#[derive(Debug)]
pub(super) struct Home(PathBuf);

impl Home {
    pub(super) fn new(name: &str) -> Result<Self, String> {
        let folder = std::env::temp_dir().join(crate::random::name(&format!("tollgate-{name}")));
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        Ok(Self(folder))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
