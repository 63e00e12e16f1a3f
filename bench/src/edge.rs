//! What standing in front of a service costs: the tower layer in process, and `/gate` over HTTP.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use axum::body::Body;
use axum::http::{Request, Response};
use serde_json::json;
use tollgate::tower::{TollgateLayer, header};
use tollgate::{Policy, Tollgate};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

use crate::Pace;
use crate::outcome::Outcome;
use crate::peers;
use crate::report::{Report, Table, progress};
use crate::servers::Server;
use crate::statistics::{median, number, ratio};
use crate::wrk::{self, Expected, Load};

/// Calls of the layer in one round.
const CALLS: usize = 20_000;
const KEYS: usize = 10_000;
const LIMITS: &str =
    r#"[{ name = "user", max = 1000000000, per = "60s", algorithm = "bucket", by = ["user"] }]"#;
const GATE: &str = "X-Original-URI: /api/items/17\nX-Original-Method: GET\nX-User: user-KEY";

pub(crate) fn run(pace: Pace) -> Result<()> {
    let mut report = Report::new("edge", "Edge", pace)?;
    let (bare, limited) = tower_layer(pace)?;
    let added: Vec<f64> = limited.iter().zip(&bare).map(|(limited, bare)| limited - bare).collect();
    let mut table = Table::new("A tower service, in process", &["service", "p50 ns"]);
    table.row(["bare".into(), number(median(&bare))]);
    table.row(["with the layer on `memory:`, 10,000 keys".into(), number(median(&limited))]);
    report.table(table);
    let (echo, gate) = over_http(pace)?;
    let mut table = Table::new("/gate, 10,000 keys", &["server", "requests/s", "p50 / p99 ms"]);
    for (name, rounds) in [("axum, an empty answer", &echo), ("tollgate /gate", &gate)] {
        let of = |value: fn(&Outcome) -> f64| {
            number(median(&rounds.iter().map(value).collect::<Vec<_>>()))
        };
        let latencies = format!(
            "{} / {}",
            of(|outcome| outcome.p50_micros / 1e3),
            of(|outcome| outcome.p99_micros / 1e3)
        );
        table.row([name.to_owned(), of(Outcome::requests_per_second), latencies]);
    }
    report.table(table);
    let rates = |rounds: &[Outcome]| -> Vec<f64> {
        rounds.iter().map(Outcome::requests_per_second).collect()
    };
    let [bare_ns, limited_ns] = [&bare, &limited].map(|rounds| number(median(rounds)));
    let detail = format!("{limited_ns} to {bare_ns} ns");
    report.measured("edge.tower", median(&added) / 1e3, detail);
    let (echo_rates, gate_rates) = (rates(&echo), rates(&gate));
    let ratio = ratio(&gate_rates, &echo_rates);
    report.measured("edge.gate", ratio.value, ratio.detail("/s", 1.0));
    report.finish(json!({
        "tower_bare_ns": bare, "tower_limited_ns": limited, "echo": echo, "gate": gate,
    }))
}

/// The median time of a call without and with the layer, in each round.
fn tower_layer(pace: Pace) -> Result<(Vec<f64>, Vec<f64>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let gate = Tollgate::open("memory:").await?;
        let policy = Policy::from_toml("api", &format!("limits = {LIMITS}"))?;
        gate.apply(&policy, "bench").await?;
        let service = service_fn(async |_: Request<Body>| {
            Ok::<_, Infallible>(Response::new(Body::from("an answer")))
        });
        let layer = TollgateLayer::by_policy(gate, "api").key(header("x-user", "user"));
        let mut limited = layer.layer(service);
        let mut bare = service;
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..=pace.rounds {
            without.push(calls(&mut bare).await?);
            with.push(calls(&mut limited).await?);
        }
        // The first made the keys.
        Ok((without.split_off(1), with.split_off(1)))
    })
}

async fn calls<B>(
    service: &mut impl Service<Request<Body>, Response = Response<B>, Error = Infallible>,
) -> Result<f64> {
    let mut nanos = Vec::with_capacity(CALLS);
    for number in 0..CALLS {
        let user = format!("user-{:08}", number * 7919 % KEYS);
        let request = Request::get("/api/items/17").header("x-user", user).body(Body::empty())?;
        let asked = Instant::now();
        let answer = service.ready().await?.call(request).await?;
        nanos.push(asked.elapsed());
        ensure!(answer.status().is_success(), "answered {}", answer.status());
    }
    nanos.sort_unstable();
    Ok(nanos[CALLS / 2].as_nanos() as f64)
}

/// Rounds of an empty answer, which is all that the gate's is too, and of `/gate`.
fn over_http(pace: Pace) -> Result<(Vec<Outcome>, Vec<Outcome>)> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("tollgate.toml");
    let text = format!(
        "[gate]\ntrusted_proxies = [\"127.0.0.1/32\"]\nidentity = {{ x-user = \"user\" }}\n\
         [policy.api]\nroutes = [\"/api/*\"]\nlimits = {LIMITS}\n"
    );
    std::fs::write(&config, text)?;
    let (wrk, program) = (peers::wrk()?, peers::tollgate()?);
    let gate = Server::tollgate_with(&program, "memory:", &config)?;
    let echo = Server::own(&["serve-echo", "0"])?;
    let load = |port| Load {
        port,
        path: "/gate",
        body: "",
        headers: GATE,
        keys: KEYS,
        connections: wrk::CONNECTIONS,
        expected: Expected::Allowed,
    };
    let (echo_load, gate_load) = (load(echo.port), load(gate.port));
    let (mut echoes, mut gates) = (Vec::new(), Vec::new());
    let bar = progress(2 * (pace.rounds + 1), "/gate");
    for round in 0..=pace.rounds {
        for (load, outcomes) in [(&echo_load, &mut echoes), (&gate_load, &mut gates)] {
            let slice = if round == 0 { Duration::from_secs(1) } else { pace.http_slice };
            let outcome = wrk::run(&wrk, load, slice)?;
            if round > 0 {
                outcomes.push(outcome);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok((echoes, gates))
}
