//! Requests per second over HTTP, beside a bare echo and the peers' servers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use serde_json::json;

use crate::Pace;
use crate::http_client::send;
use crate::outcome::Outcome;
use crate::peers;
use crate::redis::{self, Checks, FSYNCS, Redis};
use crate::report::{Report, Table, progress};
use crate::serve::ECHO_BYTES;
use crate::servers::Server;
use crate::statistics::{median, number, ratio};
use crate::wrk::{self, Expected, Load};

const MANY_KEYS: usize = 10_000;
const ECHO: &str = "axum echo, as long as ours";
const THROTTLECRAB: &str = "throttlecrab-server";
const LIMITADOR: &str = "limitador behind axum";

const CHECK_PATH: &str = "/api/v1/check";
const CHECK_ONE: &str = r#"{"policy":"one","subject":{"user":"user-KEY"},"cost":1}"#;
const CHECK_THREE: &str =
    r#"{"policy":"three","subject":{"ip":"10.0.IP","email":"user-KEY@example.com"},"cost":1}"#;
const THROTTLE: &str =
    r#"{"key":"user-KEY","max_burst":1000000000,"count_per_period":1000000000,"period":60}"#;
const REPORT_ONE: &str = r#"{"namespace":"one","values":{"user":"user-KEY"},"delta":1}"#;
const REPORT_THREE: &str =
    r#"{"namespace":"bench","values":{"ip":"10.0.IP","email":"user-KEY@example.com"},"delta":1}"#;

const POLICY_ONE: &str = r#"{"limits":[
  {"name":"user","max":1000000000,"per":"60s","algorithm":"bucket","by":["user"]}]}"#;
const POLICY_THREE: &str = r#"{"limits":[
  {"name":"global","max":1000000000,"per":"60s","algorithm":"sliding"},
  {"name":"ip","max":1000000000,"per":"60s","algorithm":"sliding","by":["ip"]},
  {"name":"email","max":1000000000,"per":"1h","algorithm":"sliding","by":["email"]}]}"#;

/// What is asked of everybody: one limit or three, one key or many.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Task {
    limits: usize,
    keys: usize,
}

const TASKS: [Task; 4] = [
    Task { limits: 1, keys: 1 },
    Task { limits: 1, keys: MANY_KEYS },
    Task { limits: 3, keys: 1 },
    Task { limits: 3, keys: MANY_KEYS },
];

impl Task {
    fn heading(self) -> String {
        let limits = if self.limits == 1 { "1 limit" } else { "3 limits" };
        let keys = if self.keys == 1 { "a hot key" } else { "10,000 keys" };
        format!("{limits}, {keys}")
    }

    fn is_one(self) -> bool {
        self.limits == 1
    }

    fn check(self) -> &'static str {
        if self.is_one() { CHECK_ONE } else { CHECK_THREE }
    }
}

struct Contender {
    name: String,
    way: Way,
}

enum Way {
    Http(Load<'static>),
    Redis(Arc<Redis>),
}

impl Contender {
    fn http(
        name: &str,
        server: &Server,
        path: &'static str,
        body: &'static str,
        task: Task,
    ) -> Self {
        let (port, connections, headers) = (server.port, wrk::CONNECTIONS, "");
        let (keys, expected) = (task.keys, Expected::Allowed);
        let load = Load { port, path, body, headers, keys, connections, expected };
        Self { name: name.to_owned(), way: Way::Http(load) }
    }

    fn run(&self, wrk: &Path, task: Task, pace: Pace) -> Result<Outcome> {
        match &self.way {
            Way::Http(load) => wrk::run(wrk, load, pace.http_slice),
            Way::Redis(redis) => {
                let checks = Checks { keys: task.keys, expected: Expected::Allowed };
                redis.run(checks, wrk::CONNECTIONS, pace.http_slice)
            }
        }
    }
}

/// By contender.
type Rounds = BTreeMap<String, Vec<Outcome>>;

pub(crate) fn run(pace: Pace) -> Result<()> {
    let mut report = Report::new("http", "HTTP", pace)?;
    report.note(format!(
        "POST, medians of {} rounds of {} s each, everybody in turn within a task and each time from \
         another one on: `wrk -t{} -c{}` on the same cores.\n\
         limitador: its library behind the echo's stack, since limitador-server is not on crates.io. \
         Redis: a script by EVALSHA over as many connections, durable as it says.",
        pace.rounds,
        pace.http_slice.as_secs(),
        wrk::THREADS,
        wrk::CONNECTIONS
    ));
    let folder = tempfile::tempdir()?;
    let servers = Servers::start(folder.path())?;
    let wrk = peers::wrk()?;
    let mut figures = Vec::new();
    for task in TASKS {
        let contenders = servers.contenders(task);
        let rounds = measure(&wrk, task, &contenders, pace)?;
        report.table(table(task, &contenders, &rounds));
        hold_against_targets(&mut report, task, &rounds);
        figures.extend(rounds.iter().map(
            |(name, rounds)| json!({ "task": task.heading(), "contender": name, "rounds": rounds }),
        ));
    }
    for reason in &servers.missing {
        report.note(format!("Not measured: {reason}"));
    }
    report.finish(json!({ "rounds": figures, "missing": servers.missing }))
}

/// Everybody, running.
struct Servers {
    /// By the name of the store.
    tollgate: Vec<(&'static str, Server)>,
    /// With answers of the size of ours: for one limit, for three.
    echoes: [Server; 2],
    limitador: Server,
    throttlecrab: Option<Server>,
    redis: Vec<(&'static str, Arc<Redis>)>,
    /// Why a peer is not among them.
    missing: Vec<String>,
}

impl Servers {
    fn start(folder: &Path) -> Result<Self> {
        let program = peers::tollgate()?;
        let mut tollgate = Vec::new();
        let file = format!("sqlite:{}", folder.join("bench.db").display());
        for (store, url) in [("memory", "memory:"), ("sqlite", &file)] {
            let server = Server::tollgate(&program, url)?;
            send("PUT", server.port, "/admin/policies/one", POLICY_ONE)?;
            send("PUT", server.port, "/admin/policies/three", POLICY_THREE)?;
            tollgate.push((store, server));
        }
        let example = &tollgate[0].1;
        let echoes = [echo(example, CHECK_ONE)?, echo(example, CHECK_THREE)?];
        let limitador = Server::own(&["serve-limitador"])?;
        let mut missing = Vec::new();
        let mut or_missing = |name: &str, error| missing.push(format!("{name}: {error:#}"));
        let throttlecrab = peers::throttlecrab()
            .and_then(|program| Server::throttlecrab(&program))
            .map_err(|error| or_missing(THROTTLECRAB, error))
            .ok();
        let redis = peers::redis()
            .and_then(|program| {
                // Servers that differ in when they flush.
                let start =
                    |fsync| Ok((redis::name_of(fsync), Arc::new(Redis::start(&program, fsync)?)));
                FSYNCS.into_iter().map(start).collect::<Result<Vec<_>>>()
            })
            .map_err(|error| or_missing("Redis", error))
            .unwrap_or_default();
        Ok(Self { tollgate, echoes, limitador, throttlecrab, redis, missing })
    }

    fn contenders(&self, task: Task) -> Vec<Contender> {
        let echo = &self.echoes[usize::from(!task.is_one())];
        let mut contenders = vec![Contender::http(ECHO, echo, CHECK_PATH, task.check(), task)];
        for (store, server) in &self.tollgate {
            let name = format!("tollgate {store}");
            contenders.push(Contender::http(&name, server, CHECK_PATH, task.check(), task));
        }
        if let Some(server) = self.throttlecrab.as_ref().filter(|_| task.is_one()) {
            // Between ours.
            contenders
                .insert(2, Contender::http(THROTTLECRAB, server, "/throttle", THROTTLE, task));
        }
        let body = if task.is_one() { REPORT_ONE } else { REPORT_THREE };
        contenders.push(Contender::http(
            LIMITADOR,
            &self.limitador,
            "/check_and_report",
            body,
            task,
        ));
        for (name, redis) in self.redis.iter().filter(|_| task.is_one()) {
            let way = Way::Redis(redis.clone());
            contenders.push(Contender { name: (*name).to_owned(), way });
        }
        contenders
    }
}

/// One whose answers are as long as ours.
fn echo(ours: &Server, body: &str) -> Result<Server> {
    let example = body.replace("KEY", "00000001").replace("IP", "0.1");
    let answer = send("POST", ours.port, CHECK_PATH, &example)?;
    let padding = answer.len().saturating_sub(example.len() + ECHO_BYTES);
    Server::own(&["serve-echo", &padding.to_string()])
}

fn measure(wrk: &Path, task: Task, contenders: &[Contender], pace: Pace) -> Result<Rounds> {
    let mut rounds = Rounds::new();
    let bar = progress(pace.rounds * contenders.len(), &task.heading());
    for round in 0..pace.rounds {
        for turn in 0..contenders.len() {
            let contender = &contenders[(round + turn) % contenders.len()];
            bar.set_message(contender.name.clone());
            let outcome = contender.run(wrk, task, pace)?;
            rounds.entry(contender.name.clone()).or_default().push(outcome);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(rounds)
}

fn rates(rounds: &Rounds, name: &str) -> Vec<f64> {
    rounds.get(name).into_iter().flatten().map(Outcome::requests_per_second).collect()
}

fn table(task: Task, contenders: &[Contender], rounds: &Rounds) -> Table {
    let columns = ["server", "requests/s", "of the echo", "p50 ms", "p99 ms"];
    let mut table = Table::new(&task.heading(), &columns);
    for Contender { name, .. } in contenders {
        let rates = rates(rounds, name);
        let millis = |micros: fn(&Outcome) -> f64| {
            let values: Vec<f64> =
                rounds[name].iter().map(|outcome| micros(outcome) / 1e3).collect();
            number(median(&values))
        };
        table.row([
            name.clone(),
            number(median(&rates)),
            number(ratio(&rates, &self::rates(rounds, ECHO)).value),
            millis(|outcome| outcome.p50_micros),
            millis(|outcome| outcome.p99_micros),
        ]);
    }
    table
}

fn hold_against_targets(report: &mut Report, task: Task, rounds: &Rounds) {
    let keys = if task.keys == 1 { "hot" } else { "many" };
    for store in ["memory", "sqlite"] {
        let ours = rates(rounds, &format!("tollgate {store}"));
        for (id, peer) in [("echo", ECHO), ("limitador", LIMITADOR), ("throttlecrab", THROTTLECRAB)]
        {
            let theirs = rates(rounds, peer);
            if !theirs.is_empty() {
                let id = format!("http.{store}.{}.{keys}.{id}", task.limits);
                let ratio = ratio(&ours, &theirs);
                report.measured(&id, ratio.value, ratio.detail("/s", 1.0));
            }
        }
    }
}
