//! The mail relay: messages accepted over HTTP, delivered by SMTP, and waiting in their hundred
//! thousands, on a file.

pub(crate) mod sink;

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use crate::Pace;
use crate::http_client::send;
use crate::machine::{TICKS_PER_SECOND, Usage};
use crate::peers;
use crate::report::{Report, Table, progress};
use crate::servers::Server;
use crate::statistics::number;
use sink::Sink;

/// Messages in one call, and callers at once.
pub(crate) const BATCH: usize = 100;
const CALLERS: usize = 4;
/// Messages that are accepted, then delivered.
const DELIVERED: usize = 10_000;
/// An account's connections.
const CONNECTIONS: usize = 8;
/// How long the dispatcher is watched while everybody waits.
const WATCHED: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn run(pace: Pace) -> Result<()> {
    let mut report = Report::new("mail", "Mail", pace)?;
    let folder = tempfile::tempdir()?;
    let store = format!("sqlite:{}", folder.path().join("bench.db").display());
    let server = Server::tollgate(&peers::tollgate()?, &store)?;
    let sink = Sink::start()?;
    let post = |path: &str, body: Value| send("POST", server.port, path, &body.to_string());
    post("/tenant", json!({ "id": "bench", "name": "Bench" }))?;
    let account = |id: &str| {
        json!({ "id": id, "tenant_id": "bench", "host": "127.0.0.1", "port": sink.port,
                "use_tls": false, "concurrency": CONNECTIONS })
    };
    post("/account", account("free"))?;
    let mut paced = account("paced");
    paced["limit_per_day"] = json!(1);
    post("/account", paced)?;
    let sending = send_all(&server, &sink)?;
    let waiting = keep_waiting(&server, &sink, pace.mail_backlog)?;
    let count = number(pace.mail_backlog as f64);
    let mut table = Table::new("The mail relay, on a file", &["what", "measured"]);
    let mut row = |what: String, measured: String| table.row([what, measured]);
    let per_second = |rate: f64| format!("{} messages/s", number(rate));
    row("accepted, batches of 100".into(), per_second(sending.accepted));
    row(
        format!("delivered, over {} connections", sending.connections),
        per_second(sending.delivered),
    );
    row(format!("{count} more accepted behind a limit"), per_second(waiting.accepted));
    let busy = format!("{} % of a core", number(waiting.busy_percent));
    row(format!("with {count} waiting: the whole server"), busy);
    let [before, with] = waiting.resident_bytes.map(|bytes| number(bytes as f64 / 1e6));
    row("resident memory, before and with them".into(), format!("{before} and {with} MB"));
    row("the relay's file".into(), size(&folder.path().join("bench-mail.db"))?);
    report.table(table);
    report.measured("mail.accepted", sending.accepted, String::new());
    let detail = format!("over {} connections", sending.connections);
    report.measured("mail.delivered", sending.delivered, detail);
    let detail = if pace.quick { format!("{count} waiting") } else { String::new() };
    report.measured("mail.waiting", waiting.busy_percent, detail.clone());
    // What SQLite and the allocator keep is bounded, and much less than the target for each.
    let [before, with] = waiting.resident_bytes;
    let grown = with.saturating_sub(before) as f64 / pace.mail_backlog as f64;
    report.measured("mail.memory", grown, detail);
    report.finish(json!({
        "accepted_per_second": sending.accepted, "delivered_per_second": sending.delivered,
        "backlog": pace.mail_backlog, "busy_percent": waiting.busy_percent,
        "resident_bytes": waiting.resident_bytes,
    }))
}

/// Messages per second.
struct Sending {
    accepted: f64,
    delivered: f64,
    connections: usize,
}

fn send_all(server: &Server, sink: &Sink) -> Result<Sending> {
    // For tomorrow, so that accepting is measured by itself.
    let tomorrow = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs() + 86_400;
    let accepting = accept(server, "free", 0..DELIVERED, Some(tomorrow))?;
    let begun = Instant::now();
    send("POST", server.port, "/commands/run-now", r#"{"tenant_id":"bench"}"#)?;
    until(begun, || Ok(sink.messages() >= DELIVERED))?;
    let delivering = begun.elapsed();
    ensure!(sink.messages() == DELIVERED, "{} messages arrived", sink.messages());
    Ok(Sending {
        accepted: DELIVERED as f64 / accepting.as_secs_f64(),
        delivered: DELIVERED as f64 / delivering.as_secs_f64(),
        connections: sink.connections(),
    })
}

/// What a server does and keeps while messages wait for their limit.
struct Waiting {
    /// Messages per second.
    accepted: f64,
    busy_percent: f64,
    /// Without them and with them.
    resident_bytes: [u64; 2],
}

fn keep_waiting(server: &Server, sink: &Sink, messages: usize) -> Result<Waiting> {
    let usage = || Usage::of(&server.id().to_string());
    let before = usage()?;
    let accepting = accept(server, "paced", 0..messages, None)?;
    // One goes out, the others wait for tomorrow.
    until(Instant::now(), || Ok(sink.messages() > DELIVERED))?;
    std::thread::sleep(Duration::from_secs(2));
    let from = usage()?;
    std::thread::sleep(WATCHED);
    let to = usage()?;
    ensure!(sink.messages() == DELIVERED + 1, "the limit of one a day was not kept");
    let busy_seconds = (to.ticks - from.ticks) as f64 / TICKS_PER_SECOND;
    Ok(Waiting {
        accepted: messages as f64 / accepting.as_secs_f64(),
        busy_percent: busy_seconds / WATCHED.as_secs_f64() * 100.0,
        resident_bytes: [before.resident_bytes, to.resident_bytes],
    })
}

/// Adds messages in batches, by several callers. How long it took until all were durable.
pub(crate) fn accept(
    server: &Server,
    account: &str,
    numbers: Range<usize>,
    deferred_ts: Option<u64>,
) -> Result<Duration> {
    let next = AtomicUsize::new(numbers.start);
    let bar = progress(numbers.len() / BATCH, account);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let first = next.fetch_add(BATCH, Ordering::Relaxed);
                if first >= numbers.end {
                    return Ok(());
                }
                let messages: Vec<Value> = (first..first + BATCH)
                    .map(|number| message(account, number, deferred_ts))
                    .collect();
                let body = json!({ "messages": messages }).to_string();
                let answer = send("POST", server.port, "/commands/add-messages", &body)?;
                let answer: Value = serde_json::from_str(&answer)?;
                ensure!(answer["queued"] == BATCH, "answered {answer}");
                bar.inc(1);
            }
        };
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(work)).collect();
        callers.into_iter().try_for_each(|caller| match caller.join() {
            Ok(result) => result,
            Err(_) => bail!("a caller panicked"),
        })
    })?;
    bar.finish_and_clear();
    Ok(begun.elapsed())
}

fn message(account: &str, number: usize, deferred_ts: Option<u64>) -> Value {
    json!({
        "id": format!("{account}-{number}"), "tenant_id": "bench", "account_id": account,
        "from": "bench@example.com", "to": [format!("user-{number}@example.com")],
        "subject": format!("Message {number}"), "deferred_ts": deferred_ts,
        "body": "A few words, as most messages are, and then some more to make up a paragraph.",
    })
}

/// Looks until it is so, or for too long.
pub(crate) fn until(begun: Instant, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    while !is_so()? {
        ensure!(begun.elapsed() < PATIENCE, "it takes too long");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn size(file: &Path) -> Result<String> {
    Ok(format!("{} MB", number(std::fs::metadata(file)?.len() as f64 / 1e6)))
}
