//! Health, metrics and the description of this interface.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::http::schema;
use crate::problem::Problem;
use crate::state::App;

/// Scrapers give up after some seconds, and most of what they want is known without the store.
const COUNTING_TIME: Duration = Duration::from_secs(1);

/// The process is alive.
#[utoipa::path(get, path = "/healthz", tag = "system",
    responses((status = 200, body = schema::Status)))]
pub(crate) async fn healthz() -> Json<schema::Status> {
    Json(schema::Status { status: "ok" })
}

/// The store answers.
#[utoipa::path(get, path = "/readyz", tag = "system",
    responses((status = 200, body = schema::Status), schema::StoreDown))]
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Result<Json<schema::Status>, Problem> {
    app.gate.ping().await.map_err(|error| app.failed(error))?;
    app.mail.ping().await.map_err(|error| app.mail_failed(error))?;
    Ok(Json(schema::Status { status: "ready" }))
}

/// Prometheus metrics.
#[utoipa::path(get, path = "/metrics", tag = "system",
    responses((status = 200, body = String,
        content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8")))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let counts = tokio::time::timeout(COUNTING_TIME, app.mail.counts()).await;
    let counts = counts.map(|counts| counts.map_err(|error| error.to_string()));
    let late = || Err("the store did not answer in time".to_owned());
    let counts = counts.unwrap_or_else(|_| late()).unwrap_or_else(|why| {
        // The rest is worth having without them.
        tracing::warn!(why, "the mail relay's counts could not be read");
        app.metrics.store_error();
        Vec::new()
    });
    ([(header::CONTENT_TYPE, content_type)], app.metrics.text(&app.gate.policies(), counts))
}
