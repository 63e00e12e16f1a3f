//! A private Redis with a script that does what one `bucket` limit does, and a client for it.
//!
//! The client speaks as much of the protocol as `EVALSHA` needs, one request at a time on each
//! connection, as callers that wait for their answer do: no pipelines.

use std::net::{Ipv4Addr, TcpStream as BlockingStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;
use testkit::servers::free_port;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::disorder::Disorder;
use crate::outcome::Outcome;
use crate::wrk::Expected;

const SCRIPT: &str = include_str!("redis/gcra.lua");
const PATIENCE: Duration = Duration::from_secs(30);

/// When it flushes its log of writes.
pub(crate) const FSYNCS: [&str; 2] = ["everysec", "always"];

pub(crate) fn name_of(fsync: &str) -> &'static str {
    match fsync {
        "always" => "Redis GCRA script, appendfsync always",
        _ => "Redis GCRA script, appendfsync everysec",
    }
}

// In the order in which they must end.
pub(crate) struct Redis {
    runtime: Runtime,
    child: Child,
    port: u16,
    digest: String,
    _folder: TempDir,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Checks {
    pub(crate) keys: usize,
    pub(crate) expected: Expected,
}

impl Checks {
    /// Microseconds for one unit, and of burst: more than it can be asked for, or one in a month.
    fn limit(self) -> (u64, u64) {
        match self.expected {
            Expected::Allowed => (6, 60_000_000),
            Expected::Refused => (2_592_000_000_000, 2_592_000_000_000),
        }
    }

    /// Those that refuse have keys of their own.
    fn key(self, number: usize) -> String {
        match self.expected {
            Expected::Allowed => format!("user-{number:08}"),
            Expected::Refused => format!("spent-{number:08}"),
        }
    }
}

impl Redis {
    pub(crate) fn start(program: &Path, fsync: &str) -> Result<Self> {
        let port = free_port();
        let folder = tempfile::tempdir()?;
        let child = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", fsync, "--dir"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{} did not start", program.display()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let mut redis = Self { runtime, child, port, digest: String::new(), _folder: folder };
        let begun = Instant::now();
        while BlockingStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if let Some(status) = redis.child.try_wait()? {
                bail!("redis-server ended at once: {status}");
            }
            ensure!(begun.elapsed() < PATIENCE, "redis-server did not answer in {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        redis.digest = redis.runtime.block_on(async {
            let mut connection = Connection::open(port).await?;
            connection.ask(&["SCRIPT", "LOAD", SCRIPT]).await
        })?;
        Ok(redis)
    }

    /// So many callers, each asking again as soon as it has its answer.
    pub(crate) fn run(&self, checks: Checks, callers: usize, slice: Duration) -> Result<Outcome> {
        self.runtime.block_on(async {
            let mut connections = Vec::new();
            for _ in 0..callers {
                connections.push(Connection::open(self.port).await?);
            }
            if matches!(checks.expected, Expected::Refused) {
                // Spent before, so that all that is counted is refused.
                for number in 1..=checks.keys {
                    connections[0].check(&self.digest, checks, number).await?;
                }
            }
            let started = Instant::now();
            let mut calls = Vec::new();
            for (number, connection) in connections.into_iter().enumerate() {
                let calling = connection.call(self.digest.clone(), checks, number, started + slice);
                calls.push(tokio::spawn(calling));
            }
            let mut latencies = Vec::new();
            for call in calls {
                latencies.append(&mut call.await??);
            }
            Outcome::of(latencies, started.elapsed())
        })
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Connection(BufReader<TcpStream>);

impl Connection {
    async fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    async fn call(
        mut self,
        digest: String,
        checks: Checks,
        number: usize,
        ends: Instant,
    ) -> Result<Vec<Duration>> {
        let mut random = Disorder::number(number);
        let mut latencies = Vec::new();
        loop {
            let asked = Instant::now();
            if asked >= ends {
                return Ok(latencies);
            }
            let key = random.below(checks.keys) + 1;
            let waits = self.check(&digest, checks, key).await? > 0;
            latencies.push(asked.elapsed());
            ensure!(waits == matches!(checks.expected, Expected::Refused), "answered {waits}");
        }
    }

    /// The microseconds to wait.
    async fn check(&mut self, digest: &str, checks: Checks, number: usize) -> Result<u64> {
        let (unit, burst) = checks.limit();
        let (unit, burst) = (unit.to_string(), burst.to_string());
        let key = checks.key(number);
        let answer = self.ask(&["EVALSHA", digest, "1", &key, &unit, &burst, "1"]).await?;
        Ok(answer.parse()?)
    }

    /// A number, or a string of known length.
    async fn ask(&mut self, words: &[&str]) -> Result<String> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(request.as_bytes()).await?;
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        let line = line.trim_end();
        match line.split_at_checked(1) {
            Some((":", number)) => Ok(number.to_owned()),
            Some(("$", length)) => {
                let mut bytes = vec![0; length.parse::<usize>()? + 2];
                self.0.read_exact(&mut bytes).await?;
                bytes.truncate(bytes.len() - 2);
                Ok(String::from_utf8(bytes)?)
            }
            _ => bail!("Redis answered {line:?}"),
        }
    }
}
