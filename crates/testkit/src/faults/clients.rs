//! Clients that are no trouble one by one: thousands that do nothing, hundreds that are slow.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::Plan;
use super::server::{Home, run};
use super::stage::{Promise, Report, Scenery, Stage, blocking};
use crate::http::Connection;

/// How long the idle ones stay after the last has come.
const STAY: Duration = Duration::from_secs(4);
/// Those who come at the same time.
const AT_ONCE: u64 = 50;
/// Files a process needs besides.
const OTHER_FILES: u64 = 500;

/// What the server allows the slow ones.
const TIMEOUTS: &str = "[server]\nheader_timeout = \"2s\"\nbody_timeout = \"2s\"";
/// By when all of them must be gone, on a machine that is not loaded.
const GONE_BY: Duration = Duration::from_secs(4);
const BETWEEN_BYTES: Duration = Duration::from_millis(200);
const BETWEEN_ARRIVALS: Duration = Duration::from_millis(3);
/// Of about a hundred kilobytes each: more than a server can put down unread.
const UNREAD_ANSWERS: usize = 30;
const SMALL_BUFFER: u32 = 4096;

async fn open(plan: &Plan, home: &Home, config: &'static str) -> Result<Stage, String> {
    let store = format!("sqlite:{}", home.path().join("counts.db").display());
    let (folder, durability) = (home.path(), "interval");
    Stage::open(plan, Scenery { folder, store, durability, config, visitors: 0 }).await
}

/// Each is served once, to be sure that it is in, and then does nothing.
pub(super) async fn idle(plan: &Plan, name: &'static str) -> Result<Report, String> {
    let home = Home::new(name)?;
    let wanted =
        plan.idle.min(blocking(|| raise_open_files(plan.idle + OTHER_FILES))? - OTHER_FILES);
    let mut stage = open(plan, &home, "").await?;
    stage.begin();
    let mut opening = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (address, share) = (stage.server.address().to_owned(), wanted / AT_ONCE);
        opening.spawn(async move {
            let mut idle = Vec::new();
            for _ in 0..share {
                let mut connection = Connection::open(&address).await?;
                connection.ask("GET /healthz", "", "").await?;
                idle.push(connection);
            }
            Ok::<_, std::io::Error>(idle)
        });
    }
    let mut idle = Vec::new();
    for opened in opening.join_all().await {
        idle.extend(opened.map_err(|error| format!("an idle connection: {error}"))?);
    }
    tokio::time::sleep(STAY).await;
    let (came, left) = (idle.len(), idle.iter().filter(|it| it.is_closed()).count());
    drop(idle);
    stage.end();
    let mut fault = format!("{came} idle connections for 4 s");
    if wanted < plan.idle {
        fault += &format!(" (this system allows no {})", plan.idle);
    }
    let mut report = stage.close(name, fault, &Promise::of(&[])).await?;
    if left > 0 {
        report.broken.push(format!("{left} idle connections were closed"));
    }
    Ok(report)
}

/// Lets this process, and the server it starts, have so many files open, or as many as may be.
fn raise_open_files(wanted: u64) -> Result<u64, String> {
    let limits = std::fs::read_to_string("/proc/self/limits").map_err(|error| error.to_string())?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let mut numbers =
        line.unwrap_or_default().split_whitespace().map(|it| it.parse().unwrap_or(u64::MAX));
    let (Some(soft), Some(hard)) = (numbers.next(), numbers.next()) else {
        return Err("the system does not say how many files may be open".into());
    };
    let files = wanted.min(hard);
    if soft < files {
        run("prlimit", &["--pid", &std::process::id().to_string(), &format!("--nofile={files}:")])?;
    }
    Ok(files.max(OTHER_FILES + AT_ONCE))
}

/// Three kinds of slow clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slow {
    /// Sends a head byte by byte.
    Head,
    /// Sends a body byte by byte.
    Body,
    /// Asks for much and reads nothing.
    Reader,
}

pub(super) async fn slow(plan: &Plan, name: &'static str) -> Result<Report, String> {
    let home = Home::new(name)?;
    let mut stage = open(plan, &home, TIMEOUTS).await?;
    stage.begin();
    let gone_by = GONE_BY + plan.slack * 4;
    let mut clients = JoinSet::new();
    // Each reader costs the system megabytes: fewer of them.
    let kinds = [(Slow::Head, plan.slow), (Slow::Body, plan.slow), (Slow::Reader, plan.slow / 4)];
    for kind in kinds.into_iter().flat_map(|(kind, count)| (0..count).map(move |_| kind)) {
        let address = stage.server.address().to_owned();
        // They are slow, not a flood.
        tokio::time::sleep(BETWEEN_ARRIVALS).await;
        clients.spawn(async move {
            let gone = tokio::time::timeout(gone_by, kind.bother(&address)).await.is_ok();
            (kind, gone)
        });
    }
    let ended = clients.join_all().await;
    stage.end();
    let count = |kind: usize| kinds[kind].1;
    let fault = format!(
        "{} clients send heads by the byte, {} bodies, {} read no answers",
        count(0),
        count(1),
        count(2)
    );
    let mut report = stage.close(name, fault, &Promise::of(&[])).await?;
    for (kind, _) in kinds {
        let staying = ended.iter().filter(|(is, gone)| *is == kind && !gone).count();
        if staying > 0 {
            let by = gone_by.as_secs();
            report
                .broken
                .push(format!("{staying} slow ({kind:?}) were still connected after {by} s"));
        }
    }
    Ok(report)
}

impl Slow {
    /// Returns when the server has hung up.
    async fn bother(self, address: &str) {
        let Ok(mut stream) = connect(address).await else { return };
        match self {
            Self::Head => {
                drip(&mut stream, "GET /healthz HTTP/1.1\r\nHost: test\r\nX-Slow: ").await;
            }
            Self::Body => {
                let head =
                    "POST /api/v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\n{";
                drip(&mut stream, head).await;
            }
            Self::Reader => read_nothing(&mut stream).await,
        }
    }
}

/// With a small buffer for what it would read.
async fn connect(address: &str) -> Result<TcpStream, std::io::Error> {
    let address = address.parse().map_err(|_| ErrorKind::InvalidInput)?;
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(SMALL_BUFFER)?;
    socket.connect(address).await
}

/// Sends the beginning at once and then a byte now and then, until the other side has had enough.
async fn drip(stream: &mut TcpStream, beginning: &str) {
    if stream.write_all(beginning.as_bytes()).await.is_err() {
        return;
    }
    loop {
        let mut answer = [0; 4096];
        match tokio::time::timeout(BETWEEN_BYTES, stream.read(&mut answer)).await {
            Ok(Ok(0) | Err(_)) => return,
            Ok(Ok(_)) => {}
            Err(_) => {
                if stream.write_all(b" ").await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Asks for more than its small buffers hold, leaves all answers where they are, and looks now and then whether
/// it is still connected.
async fn read_nothing(stream: &mut TcpStream) {
    let request = "GET /openapi.json HTTP/1.1\r\nHost: test\r\n\r\n";
    if stream.write_all(request.repeat(UNREAD_ANSWERS).as_bytes()).await.is_err() {
        return;
    }
    loop {
        tokio::time::sleep(BETWEEN_BYTES).await;
        // What was sent to a connection that is closed is answered by a reset.
        match stream.try_write(b"\r\n") {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return,
            Ok(_) | Err(_) => {}
        }
    }
}
