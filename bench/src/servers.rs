//! Servers under measurement: child processes that end with their handle.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use testkit::servers::free_port;

use crate::http_client::send;

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    /// From the spawn to the first answer.
    pub(crate) ready_after: Duration,
}

impl Server {
    pub(crate) fn tollgate(program: &Path, store: &str) -> Result<Self> {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let mut command = Command::new(program);
        command.args(["serve", "--store", store, "--listen", &listen]);
        Self::start(&mut command, port, "/healthz")
    }

    /// With a configuration file.
    pub(crate) fn tollgate_with(program: &Path, store: &str, config: &Path) -> Result<Self> {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let mut command = Command::new(program);
        command.args(["serve", "--store", store, "--listen", &listen, "--config"]).arg(config);
        Self::start(&mut command, port, "/healthz")
    }

    pub(crate) fn throttlecrab(program: &Path) -> Result<Self> {
        let port = free_port();
        let mut command = Command::new(program);
        command.args(["--http", "--http-host", "127.0.0.1", "--log-level", "error"]);
        command.args(["--http-port", &port.to_string()]);
        Self::start(&mut command, port, "/health")
    }

    /// This program, serving something in a process of its own.
    pub(crate) fn own(arguments: &[&str]) -> Result<Self> {
        let port = free_port();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).env("BENCH_PORT", port.to_string());
        Self::start(&mut command, port, "/healthz")
    }

    /// Of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    fn start(command: &mut Command, port: u16, health: &str) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let started = Instant::now();
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{name} did not start"))?;
        let mut server = Self { child, port, ready_after: Duration::ZERO };
        while send("GET", port, health, "").is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("{name} ended at once: {status}");
            }
            if started.elapsed() > PATIENCE {
                bail!("{name} did not answer within {PATIENCE:?}");
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        server.ready_after = started.elapsed();
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
