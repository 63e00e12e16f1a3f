//! What the bench serves itself: the bare echo that is the limit for any JSON API on this stack,
//! and limitador's library on the same stack, because its server is not on crates.io.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use limitador::RateLimiter;
use limitador::limit::{Limit, Namespace};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::contenders::three_limits;

const WORKERS: usize = 2;

/// The body of a check, as our server reads it.
#[derive(Serialize, Deserialize)]
struct Check {
    policy: String,
    subject: HashMap<String, String>,
    cost: u32,
}

#[derive(Serialize)]
struct Echo {
    echo: Check,
    padding: Arc<str>,
}

/// What an echo has besides the request and its padding.
pub(crate) const ECHO_BYTES: usize = r#"{"echo":,"padding":""}"#.len();

/// Answers a check with what it was asked and so many bytes more, and a proxy with nothing.
pub(crate) fn echo(padding_bytes: usize) -> Result<()> {
    let padding: Arc<str> = "x".repeat(padding_bytes).into();
    let answer = |State(padding): State<Arc<str>>, Json(echo): Json<Check>| async move {
        Json(Echo { echo, padding })
    };
    let router = Router::new()
        .route("/api/v1/check", post(answer))
        .route("/gate", get(|| async { StatusCode::OK }));
    serve(router.with_state(padding))
}

/// The body of limitador-server's `/check_and_report`.
#[derive(Deserialize)]
struct Report {
    namespace: String,
    values: HashMap<String, String>,
    delta: u64,
}

pub(crate) fn limitador() -> Result<()> {
    let limiter = RateLimiter::new(1_000_000);
    limiter.add_limit(Limit::new("one", 1_000_000_000, 60, [], ["user".try_into()?]));
    for limit in three_limits()? {
        limiter.add_limit(limit);
    }
    let answer = |State(limiter): State<Arc<RateLimiter>>, Json(report): Json<Report>| async move {
        let namespace = Namespace::from(report.namespace);
        let values = report.values.into();
        match limiter.check_rate_limited_and_update(&namespace, &values, report.delta) {
            Ok(result) if result.limited => StatusCode::TOO_MANY_REQUESTS,
            Ok(_) => StatusCode::OK,
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    };
    serve(Router::new().route("/check_and_report", post(answer)).with_state(Arc::new(limiter)))
}

fn serve(router: Router) -> Result<()> {
    let port: u16 =
        std::env::var("BENCH_PORT").context("BENCH_PORT says where to serve")?.parse()?;
    let router = router.route("/healthz", get(|| async { "ok" }));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        axum::serve(listener, router).await?;
        Ok(())
    })
}
