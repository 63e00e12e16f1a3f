//! A mail backlog that gets longer and longer: what accepting and sending on costs.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testkit::servers::{Postgres, Settings};

use super::steps::{Cost, Point, Series};
use super::{add, checks, title};
use crate::Pace;
use crate::http_client::send;
use crate::machine::Usage;
use crate::mail::sink::Sink;
use crate::mail::{BATCH, accept, until};
use crate::peers;
use crate::report::Report;
use crate::servers::Server;
use crate::statistics::{median, number};

/// Accepted one call after the other, at each size.
const TIMED: usize = 1000;
/// Of the backlog, so many are let go before the time is taken, and then so many.
const STARTING: usize = 100;
const DELIVERED: usize = 800;
const CONNECTIONS: usize = 8;
/// Nothing arrives for so long: nothing is under way any more.
const QUIET: Duration = Duration::from_millis(500);

pub(super) fn run(report: &mut Report, pace: Pace) -> Result<Value> {
    let program = peers::tollgate()?;
    let mut figures = Vec::new();
    for (name, id) in [("SQLite", "sqlite"), ("PostgreSQL", "postgres")] {
        eprintln!("growth of mail, {name}");
        let folder = tempfile::tempdir()?;
        let lines = vec!["shared_buffers = '128MB'".to_owned()];
        let postgres = (id == "postgres")
            .then(|| Postgres::start_with(Settings { fsync: true, lines, ..Settings::default() }));
        let url = match &postgres {
            Some(postgres) => postgres.url(),
            None => format!("sqlite:{}", folder.path().join("growth.db").display()),
        };
        let stored = || match &postgres {
            Some(postgres) => {
                Ok(postgres.psql("select pg_database_size(current_database())").parse()?)
            }
            None => Ok(checks::file_bytes(&folder.path().join("growth-mail.db"))),
        };
        let server = Server::tollgate(&program, &url)?;
        let points = backlog(&server, pace.growth.mail, stored)?;
        let cost = |what, kind: &str| Cost {
            what,
            unit: "µs",
            id: Some(format!("growth.mail.{id}.{kind}")),
            memory: None,
        };
        let costs = vec![
            cost("accepting one, in batches of 100", "accept"),
            cost("claiming and delivering one", "claim"),
        ];
        let heading = format!("{}, {name}", title("mail"));
        let series = Series { heading, of: "messages waiting", costs, points };
        add(report, &series);
        figures.push(series.json());
    }
    Ok(json!(figures))
}

fn backlog(
    server: &Server,
    sizes: &[usize],
    stored: impl Fn() -> Result<u64>,
) -> Result<Vec<Point>> {
    let sink = Sink::start()?;
    let post = |path: &str, body: Value| send("POST", server.port, path, &body.to_string());
    let tenant = json!({ "tenant_id": "bench" });
    post("/tenant", json!({ "id": "bench", "name": "Bench" }))?;
    post(
        "/account",
        json!({ "id": "growth", "tenant_id": "bench", "host": "127.0.0.1", "port": sink.port,
                "use_tls": false, "concurrency": CONNECTIONS }),
    )?;
    post("/commands/suspend", tenant.clone())?;
    let begun = Instant::now();
    let mut points = Vec::new();
    let mut accepted = 0;
    for &size in sizes {
        let wanted = size + sink.messages();
        let rest = wanted.saturating_sub(TIMED + accepted) / BATCH * BATCH;
        accept(server, "growth", accepted..accepted + rest, None)?;
        accepted += rest;
        let mut accepting = Vec::new();
        while accepted < wanted {
            let took = accept(server, "growth", accepted..accepted + BATCH, None)?;
            accepting.push(took.as_nanos() as f64 / 1e3 / BATCH as f64);
            accepted += BATCH;
        }
        let stored_bytes = Some(stored()?);
        let before = sink.messages();
        post("/commands/activate", tenant.clone())?;
        until(Instant::now(), || Ok(sink.messages() >= before + STARTING))?;
        let (from, started) = (sink.messages(), Instant::now());
        until(started, || Ok(sink.messages() >= from + DELIVERED))?;
        let delivering = started.elapsed().as_nanos() as f64 / 1e3 / DELIVERED as f64;
        post("/commands/suspend", tenant.clone())?;
        until_quiet(&sink)?;
        eprintln!(
            "  {} messages after {:.0} s",
            number(size as f64),
            begun.elapsed().as_secs_f64()
        );
        points.push(Point {
            size,
            costs: vec![median(&accepting), delivering],
            resident_bytes: Usage::of(&server.id().to_string())?.resident_bytes,
            stored_bytes,
        });
    }
    ensure!(!points.is_empty(), "there is no size");
    Ok(points)
}

fn until_quiet(sink: &Sink) -> Result<()> {
    let (mut seen, mut since) = (sink.messages(), Instant::now());
    until(since, || Ok(sink.messages() > 0))?;
    while since.elapsed() < QUIET {
        std::thread::sleep(Duration::from_millis(10));
        if sink.messages() != seen {
            (seen, since) = (sink.messages(), Instant::now());
        }
    }
    Ok(())
}
