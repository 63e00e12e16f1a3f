//! Requests per second over HTTP, beside a bare echo and the peers' servers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use serde_json::{Value, json};

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
const ECHO_ONE: &str = "axum echo, size of 1 limit";
const ECHO_THREE: &str = "axum echo, size of 3 limits";
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

struct Contender {
    name: String,
    way: Way,
    keys: usize,
    /// The echo with an answer of the same size.
    echo: &'static str,
}

enum Way {
    Http(Load<'static>),
    Redis(Arc<Redis>),
}

impl Contender {
    fn run(&self, wrk: &Path, pace: Pace) -> Result<Outcome> {
        match &self.way {
            Way::Http(load) => wrk::run(wrk, load, pace.http_slice),
            Way::Redis(redis) => {
                let checks = Checks { keys: self.keys, expected: Expected::Allowed };
                redis.run(checks, wrk::CONNECTIONS, pace.http_slice)
            }
        }
    }
}

pub(crate) fn run(pace: Pace) -> Result<()> {
    let mut report = Report::new("http", "HTTP", pace)?;
    report.note(format!(
        "POST, medians of {} interleaved rounds of {} s each: `wrk -t{} -c{}` on the same cores.\n\
         limitador: its library behind the echo's stack, since limitador-server is not on crates.io. \
         Redis: 1 limit, a script by EVALSHA over as many connections, durable as it says.",
        HTTP_ROUNDS,
        pace.http_slice.as_secs(),
        wrk::THREADS,
        wrk::CONNECTIONS
    ));
    let folder = tempfile::tempdir()?;
    let (servers, mut contenders, mut missing) = start_all(folder.path())?;
    match peers::redis().and_then(|program| with_redis(&program)) {
        Ok(with_redis) => contenders.extend(with_redis),
        Err(error) => missing.push(format!("Redis: {error:#}")),
    }
    let rounds = measure(&contenders, pace)?;
    drop(servers);
    report.table(table(&contenders, &rounds, &missing));
    hold_against_targets(&mut report, &rounds);
    let figures = json!({
        "rounds": rounds.iter().map(|(name, rounds)| json!({ "contender": name, "rounds": rounds }))
            .collect::<Vec<Value>>(),
        "missing": missing,
    });
    report.finish(figures)
}

const HTTP_ROUNDS: usize = 3;
type Rounds = BTreeMap<String, Vec<Outcome>>;

/// Every server, running; what is sent to each; and why a peer is not among them.
fn start_all(folder: &Path) -> Result<(Vec<Server>, Vec<Contender>, Vec<String>)> {
    let program = peers::tollgate()?;
    let mut servers = Vec::new();
    let mut contenders = Vec::new();
    let mut missing = Vec::new();
    let mut add = |server: &Server, what: &str, path, body, keys, echo| {
        let (port, connections) = (server.port, wrk::CONNECTIONS);
        let expected = Expected::Allowed;
        let load = Load { port, path, body, headers: "", keys, connections, expected };
        let name = format!("{what}, {}", keys_in_words(keys));
        contenders.push(Contender { name, way: Way::Http(load), keys, echo });
    };
    let mut paddings = [0, 0];
    for (store, url) in [
        ("memory", "memory:".to_owned()),
        ("sqlite", format!("sqlite:{}", folder.join("bench.db").display())),
    ] {
        let server = Server::tollgate(&program, &url)?;
        send("PUT", server.port, "/admin/policies/one", POLICY_ONE)?;
        send("PUT", server.port, "/admin/policies/three", POLICY_THREE)?;
        for (position, (limits, body, echo)) in
            [("1 limit", CHECK_ONE, ECHO_ONE), ("3 limits", CHECK_THREE, ECHO_THREE)]
                .into_iter()
                .enumerate()
        {
            let example = body.replace("KEY", "00000001").replace("IP", "0.1");
            let answer = send("POST", server.port, CHECK_PATH, &example)?;
            paddings[position] = answer.len().saturating_sub(example.len() + ECHO_BYTES);
            for keys in [1, MANY_KEYS] {
                let what = format!("tollgate {store}, {limits}");
                add(&server, &what, CHECK_PATH, body, keys, echo);
            }
        }
        servers.push(server);
    }
    for (echo, body, padding) in
        [(ECHO_ONE, CHECK_ONE, paddings[0]), (ECHO_THREE, CHECK_THREE, paddings[1])]
    {
        let server = Server::own(&["serve-echo", &padding.to_string()])?;
        add(&server, echo, CHECK_PATH, body, MANY_KEYS, echo);
        servers.push(server);
    }
    match peers::throttlecrab().and_then(|program| Server::throttlecrab(&program)) {
        Ok(server) => {
            for keys in [1, MANY_KEYS] {
                add(&server, THROTTLECRAB, "/throttle", THROTTLE, keys, ECHO_ONE);
            }
            servers.push(server);
        }
        Err(error) => missing.push(format!("{THROTTLECRAB}: {error:#}")),
    }
    let server = Server::own(&["serve-limitador"])?;
    for (limits, body, echo) in
        [("1 limit", REPORT_ONE, ECHO_ONE), ("3 limits", REPORT_THREE, ECHO_THREE)]
    {
        let what = format!("{LIMITADOR}, {limits}");
        add(&server, &what, "/check_and_report", body, MANY_KEYS, echo);
    }
    servers.push(server);
    Ok((servers, contenders, missing))
}

/// Two servers that differ in when they flush.
fn with_redis(program: &Path) -> Result<Vec<Contender>> {
    let mut contenders = Vec::new();
    for fsync in FSYNCS {
        let redis = Arc::new(Redis::start(program, fsync)?);
        for keys in [1, MANY_KEYS] {
            let name = format!("{}, {}", redis::name_of(fsync), keys_in_words(keys));
            let way = Way::Redis(redis.clone());
            contenders.push(Contender { name, way, keys, echo: ECHO_ONE });
        }
    }
    Ok(contenders)
}

fn keys_in_words(keys: usize) -> &'static str {
    if keys == 1 { "hot" } else { "10k keys" }
}

fn measure(contenders: &[Contender], pace: Pace) -> Result<Rounds> {
    let wrk = peers::wrk()?;
    let mut rounds = Rounds::new();
    let bar = progress(HTTP_ROUNDS * contenders.len(), "http");
    for _ in 0..HTTP_ROUNDS {
        for contender in contenders {
            bar.set_message(contender.name.clone());
            let outcome = contender.run(&wrk, pace)?;
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

fn echo_rates(rounds: &Rounds, echo: &str) -> Vec<f64> {
    rates(rounds, &format!("{echo}, 10k keys"))
}

fn table(contenders: &[Contender], rounds: &Rounds, missing: &[String]) -> Table {
    let columns = ["server", "requests/s", "of the echo", "p50 ms", "p99 ms"];
    let mut table = Table::new("Requests", &columns);
    for contender in contenders {
        let outcomes = &rounds[&contender.name];
        let rates = rates(rounds, &contender.name);
        let millis = |micros: fn(&Outcome) -> f64| {
            let values: Vec<f64> = outcomes.iter().map(|outcome| micros(outcome) / 1e3).collect();
            number(median(&values))
        };
        table.row([
            contender.name.clone(),
            number(median(&rates)),
            number(ratio(&rates, &echo_rates(rounds, contender.echo))),
            millis(|outcome| outcome.p50_micros),
            millis(|outcome| outcome.p99_micros),
        ]);
    }
    for reason in missing {
        table.row([reason.clone(), "–".into(), "–".into(), "–".into(), "–".into()]);
    }
    table
}

fn hold_against_targets(report: &mut Report, rounds: &Rounds) {
    let places = ["memory", "sqlite"].into_iter().flat_map(|store| {
        [("1", "1 limit", ECHO_ONE), ("3", "3 limits", ECHO_THREE)].map(|limits| (store, limits))
    });
    for (store, (count, limits, echo)) in places {
        for (keys, name_of_keys) in [("hot", "hot"), ("many", "10k keys")] {
            let ours = rates(rounds, &format!("tollgate {store}, {limits}, {name_of_keys}"));
            let mut to = |peer: &str, peers_rates: &[f64]| {
                if !peers_rates.is_empty() {
                    let id = format!("http.{store}.{count}.{keys}.{peer}");
                    let [us, them] = [&ours, peers_rates].map(|rates| number(median(rates)));
                    let detail = format!("{us} to {them}/s");
                    report.measured(&id, ratio(&ours, peers_rates), detail);
                }
            };
            to("echo", &echo_rates(rounds, echo));
            to("limitador", &rates(rounds, &format!("{LIMITADOR}, {limits}, 10k keys")));
            if count == "1" {
                to("throttlecrab", &rates(rounds, &format!("{THROTTLECRAB}, {name_of_keys}")));
            }
        }
    }
}
