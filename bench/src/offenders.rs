//! What recording refusals costs: two servers that differ in `[alerts] watch` alone.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::Pace;
use crate::http_client::send;
use crate::outcome::Outcome;
use crate::peers;
use crate::report::{Report, Table, progress};
use crate::servers::Server;
use crate::statistics::{median, number, ratio};
use crate::wrk::{self, Expected, Load};

/// Many and short, each the other way round than the last: a round is off by a tenth either way,
/// which is twice what is looked for.
const ROUNDS: usize = 31;
const ROUNDS_PER_SLICE: u32 = 4;
const MANY_KEYS: usize = 10_000;
const CHECK_PATH: &str = "/api/v1/check";
const REFUSING: &str = r#"{"policy":"refusing","subject":{"user":"user-KEY"},"cost":1}"#;
const ALLOWING: &str = r#"{"policy":"allowing","subject":{"user":"user-KEY"},"cost":1}"#;
const REFUSING_POLICY: &str = r#"{"limits":[{"name":"user","max":1,"per":"3650d","by":["user"]}]}"#;
const ALLOWING_POLICY: &str =
    r#"{"limits":[{"name":"user","max":1000000000,"per":"3650d","by":["user"]}]}"#;
const HOT: &str = "refused, hot";
const MANY: &str = "refused, 10k keys";
/// The loads, with what their answers must be.
const LOADS: [(&str, &str, usize, Expected); 3] = [
    (HOT, REFUSING, 1, Expected::Refused),
    (MANY, REFUSING, MANY_KEYS, Expected::Refused),
    ("allowed, 10k keys", ALLOWING, MANY_KEYS, Expected::Allowed),
];

pub(crate) fn run(pace: Pace) -> Result<()> {
    let mut report = Report::new("offenders", "Offenders", pace)?;
    report.note(format!(
        "POST to a server that records refusals and to one that does not: medians of {ROUNDS} \
         rounds of {} ms each, in turn and in both orders, `wrk -t{} -c{}` on the same cores.",
        slice(pace).as_millis(),
        wrk::THREADS,
        wrk::CONNECTIONS
    ));
    let folder = tempfile::tempdir()?;
    let program = peers::tollgate()?;
    let mut servers = Vec::new();
    for watch in [true, false] {
        let config = folder.path().join(format!("watch-{watch}.toml"));
        std::fs::write(&config, format!("[alerts]\nwatch = {watch}\n"))?;
        let server = Server::tollgate_with(&program, "memory:", &config)?;
        send("PUT", server.port, "/admin/policies/refusing", REFUSING_POLICY)?;
        send("PUT", server.port, "/admin/policies/allowing", ALLOWING_POLICY)?;
        // Everybody's one unit is spent, so that all is refused from here on.
        for key in 0..=MANY_KEYS {
            let body = REFUSING.replace("KEY", &format!("{key:08}"));
            send("POST", server.port, CHECK_PATH, &body)?;
        }
        servers.push(server);
    }
    let rounds = measure(&servers, pace)?;
    drop(servers);
    let mut table = Table::new("Requests per second", &["load", "recording", "not", "of it"]);
    for (what, [with, without]) in &rounds {
        let kept = ratio(with, without);
        let [with, without] = [with, without].map(|rates| number(median(rates)));
        let id = match *what {
            HOT => "offenders.refused.hot",
            MANY => "offenders.refused.many",
            _ => "offenders.allowed",
        };
        report.measured(id, kept.value, kept.detail("/s", 1.0));
        table.row([(*what).to_owned(), with, without, number(kept.value)]);
    }
    report.table(table);
    report.finish(json!({ "rounds": rounds }))
}

fn slice(pace: Pace) -> Duration {
    // What wrk understands are whole seconds.
    (pace.http_slice / ROUNDS_PER_SLICE).max(Duration::from_secs(1))
}

/// By load: requests per second with and without.
type Rounds = BTreeMap<&'static str, [Vec<f64>; 2]>;

fn measure(servers: &[Server], pace: Pace) -> Result<Rounds> {
    let wrk = peers::wrk()?;
    let mut rounds = Rounds::new();
    let bar = progress(ROUNDS * LOADS.len() * servers.len(), "offenders");
    for round in 0..ROUNDS {
        for (what, body, keys, expected) in LOADS {
            for turn in 0..servers.len() {
                let position = (round + turn) % servers.len();
                let server = &servers[position];
                let (port, connections) = (server.port, wrk::CONNECTIONS);
                let (path, headers) = (CHECK_PATH, "");
                let load = Load { port, path, body, headers, keys, connections, expected };
                let outcome = wrk::run(&wrk, &load, slice(pace))?;
                let rate = Outcome::requests_per_second(&outcome);
                rounds.entry(what).or_default()[position].push(rate);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(rounds)
}
